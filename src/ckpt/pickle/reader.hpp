#pragma once

#include <cstddef>
#include <span>

#include "ckpt/pickle/node.hpp"
#include "ckpt/pickle/value.hpp"

namespace accel::ckpt::pickle {

/// Limits on the tree of a pickle. The defaults are far above any real checkpoint and far below what does
/// harm.
struct Limits {
  std::size_t depth = 200;          ///< The most containers within containers.
  std::size_t values = 50'000'000;  ///< The most values in the tree. A shared part counts each time.
  /// The tree may take this many bytes for each byte of the input, and tree_bytes_at_least more. No pickle
  /// comes near that without shared parts.
  std::size_t tree_bytes_per_byte = 64;
  std::size_t tree_bytes_at_least = std::size_t{64} << 20;
};

/// Reads a pickle of protocol 2 to 5 as a tree of values. It imports nothing, calls nothing, and keeps every
/// class and function as a name. `limits` and the size of the input bound the memory: a small pickle with a
/// large tree, as its parts are shared, is an Error.
///
/// Values that protocol 2 writes as calls are read as those values: `_codecs.encode(text, 'latin1')` as
/// Bytes, `set([...])` as Set.
///
/// Throws Error (kCorrupt) for an unknown opcode, a stack that does not match, a value that contains itself,
/// input that ends early or goes on after STOP, or a limit exceeded.
[[nodiscard]] Value parse(std::span<const std::byte> bytes, const Limits& limits = {});

/// Copies a value of a document, and everything in it, to a tree. Throws Error as parse() does.
[[nodiscard]] Value tree_of(NodeRef value, const Limits& limits = {});

}  // namespace accel::ckpt::pickle
