#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ckpt/tensor/box.hpp"
#include "ckpt/tensor/stored_tensor.hpp"

namespace accel::ckpt {

/// Finds the extents of one tensor that may share elements with a box, without a look at all of them. They
/// are sorted along the dimension in which the most of them begin at different places. So the time to read a
/// tensor piece by piece grows with the number of pieces, not with its square.
class ExtentIndex {
 public:
  /// All extents must have as many dimensions as the tensor.
  explicit ExtentIndex(std::span<const Extent> extents);

  /// Indices of extents, among which are all that share an element with `box`.
  [[nodiscard]] std::span<const std::size_t> candidates(const Box& box) const;

  /// Whether this index was probably made from these extents: compares their address and their number.
  [[nodiscard]] bool seems_of(std::span<const Extent> extents) const {
    return extents.data() == data_ && extents.size() == order_.size();
  }

 private:
  const Extent* data_;              ///< The address is compared, and never dereferenced.
  std::size_t dim_ = 0;             ///< The dimension along which the extents are sorted.
  std::vector<std::size_t> order_;  ///< Indices of the extents, sorted by where they begin.
  std::vector<std::int64_t> begins_;
  std::vector<std::int64_t> ends_;  ///< The greatest end among an extent and those before it.
};

}  // namespace accel::ckpt
