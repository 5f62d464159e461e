#pragma once

#include <cstddef>
#include <span>

#include "ckpt/pickle/graph.hpp"
#include "ckpt/pickle/node.hpp"

namespace accel::ckpt::pickle {

/// A pickle of protocol 2 to 5 as a graph: a container takes 16 bytes and a value 4, and a shared value is
/// there once. It is meant for pickles of millions of values. For others pickle::parse is simpler to use.
class Document {
 public:
  /// Runs the opcodes on a stack of references. Nothing is imported or called, nothing recurses, and memory
  /// is bounded by a multiple of the size of the input. `bytes` must outlive the document. Throws Error
  /// (kCorrupt) as pickle::parse does, but has no limit on depth, and values may contain themselves: a walk
  /// must limit its own depth.
  explicit Document(std::span<const std::byte> bytes);

  [[nodiscard]] NodeRef root() const { return {graph_, graph_.root}; }

 private:
  Graph graph_;
};

}  // namespace accel::ckpt::pickle
