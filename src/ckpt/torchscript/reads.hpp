#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace accel::ckpt {

/// An attribute reached from a module: {"blocks", "0", "weight"} is `self.blocks.0.weight`.
using AttributePath = std::vector<std::string>;

/// The attributes that a method of a module reads, by the chains of names that start at its first argument,
/// in the order of the source; each step of a chain is one that is read: `self.a.b` gives {a} and {a, b}. A
/// call `self.a.forward(x)` reads {a}.
///
/// `source` is a method as torch writes it into an archive: one statement a line, attributes read as
/// `self.name` or `getattr(self, "0")`, mostly into variables first. Variables are followed as far as they
/// stand for one chain; where branches or loops decide which, nothing is read through them. This is what
/// chains of prim::GetAttr are in the method's graph. Text that is no such method gives no reads.
[[nodiscard]] std::vector<AttributePath> attribute_reads(std::string_view source);

}  // namespace accel::ckpt
