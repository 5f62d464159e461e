#pragma once

#include <cstddef>
#include <span>

#include "ckpt/pickle/graph.hpp"
#include "ckpt/pickle/node.hpp"

namespace accel::ckpt::pickle {

/// A pickle of protocol 2 to 5, read without building a tree: 16 bytes a container and 4 a value, whatever is
/// shared is there once. For pickles of millions of values; for others pickle::parse is handier.
class Document {
 public:
  /// `bytes` must outlive the document. Throws Error (kCorrupt) as pickle::parse does, but knows no limit on
  /// depth, and values may contain themselves: who walks it has to keep count.
  explicit Document(std::span<const std::byte> bytes);

  [[nodiscard]] NodeRef root() const { return {graph_, graph_.root}; }

 private:
  Graph graph_;
};

}  // namespace accel::ckpt::pickle
