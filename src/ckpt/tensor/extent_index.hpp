#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ckpt/tensor/box.hpp"
#include "ckpt/tensor/stored_tensor.hpp"

namespace accel::ckpt {

/// Finds the extents of one tensor that may meet a box without looking at all of them: sorted along the
/// dimension in which the most of them begin at different places. A tensor in a million pieces is read piece
/// by piece in time that grows with the pieces, not with their square.
class ExtentIndex {
 public:
  /// All extents must have the tensor's dimensions.
  explicit ExtentIndex(std::span<const Extent> extents);

  /// Indices of extents, among which are all that share an element with `box`.
  [[nodiscard]] std::span<const std::size_t> candidates(const Box& box) const;

  /// Whether this was made from these extents, judged by where they lie in memory and how many they are.
  [[nodiscard]] bool seems_of(std::span<const Extent> extents) const {
    return extents.data() == data_ && extents.size() == order_.size();
  }

 private:
  const Extent* data_;              ///< Never followed.
  std::size_t dim_ = 0;             ///< The dimension they are sorted along.
  std::vector<std::size_t> order_;  ///< By where they begin.
  std::vector<std::int64_t> begins_;
  std::vector<std::int64_t> ends_;  ///< The greatest end of this extent and those before it.
};

}  // namespace accel::ckpt
