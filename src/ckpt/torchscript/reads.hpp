#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace accel::ckpt {

/// An attribute reached from a module: {"blocks", "0", "weight"} is `self.blocks.0.weight`.
using AttributePath = std::vector<std::string>;

/// The attributes that a method of a module reads, in the order of the source: the chains of names that start
/// at its first argument. Each step of a chain is a read: `self.a.b` gives {a} and {a, b}. A call
/// `self.a.forward(x)` reads {a}.
///
/// `source` is a method as torch writes it into an archive: one statement a line, attributes read as
/// `self.name` or `getattr(self, "0")`, mostly into variables first. A variable is followed if it has the
/// value of one chain; if a branch or a loop decides its value, no reads through it are found. The chains are
/// those of prim::GetAttr in the method's graph. Text that is not such a method gives no reads.
[[nodiscard]] std::vector<AttributePath> attribute_reads(std::string_view source);

}  // namespace accel::ckpt
