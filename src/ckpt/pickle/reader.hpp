#pragma once

#include <cstddef>
#include <span>

#include "ckpt/pickle/node.hpp"
#include "ckpt/pickle/value.hpp"

namespace accel::ckpt::pickle {

/// What a pickle may cost. The defaults are far above any real checkpoint and far below harm.
struct Limits {
  std::size_t depth = 200;          ///< Containers within containers.
  std::size_t values = 50'000'000;  ///< In the tree, shared parts counted each time.
  /// Bytes of the tree: so many for each byte of input, and a start. Without sharing no pickle comes near.
  std::size_t tree_bytes_per_byte = 64;
  std::size_t tree_bytes_at_least = std::size_t{64} << 20;
};

/// Reads a pickle of protocol 2 to 5 as a tree of values. A restricted reader: it imports nothing, calls
/// nothing, and keeps every class and function as a name. Memory is bounded by `limits` and by the size of
/// the input: a small pickle whose tree is large, since it shares its parts, is refused.
///
/// What Python 2 and 3 spell as calls in protocol 2 comes out as the value meant: `_codecs.encode(text,
/// 'latin1')` as Bytes, `set([...])` as Set.
///
/// Throws Error (kCorrupt) for an unknown opcode, a stack that does not match, a value that contains itself,
/// input that ends early or goes on after STOP, or a limit exceeded.
[[nodiscard]] Value parse(std::span<const std::byte> bytes, const Limits& limits = {});

/// A value of a document that has been read, and all below it, as a tree. Throws as parse() does.
[[nodiscard]] Value tree_of(NodeRef value, const Limits& limits = {});

}  // namespace accel::ckpt::pickle
