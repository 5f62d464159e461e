#pragma once

#include <cstddef>
#include <span>

#include "ckpt/pickle_value.hpp"

namespace accel::ckpt::pickle {

/// What a pickle may cost. The defaults are far above any real checkpoint and far below harm.
struct Limits {
  std::size_t depth = 200;          ///< Containers within containers.
  std::size_t values = 50'000'000;  ///< In the tree, shared parts counted each time.
};

/// Reads a pickle of protocol 2 to 5 as a tree of values. A restricted reader: it imports nothing, calls
/// nothing, and keeps every class and function as a name. Memory is bounded by `limits` and by the size of
/// the input.
///
/// What Python 2 and 3 spell as calls in protocol 2 comes out as the value meant: `_codecs.encode(text,
/// 'latin1')` as Bytes, `set([...])` as Set.
///
/// Throws Error (kCorrupt) for an unknown opcode, a stack that does not match, a value that contains itself,
/// input that ends early or goes on after STOP, or a limit exceeded.
[[nodiscard]] Value parse(std::span<const std::byte> bytes, const Limits& limits = {});

}  // namespace accel::ckpt::pickle
