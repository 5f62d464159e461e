#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/flat_layout.hpp"

namespace accel {

/// A matrix whose update one rank of the shard group computes.
struct OwnedMatrix {
  std::size_t buffer = 0;     ///< Index into the buffers that were planned.
  std::size_t parameter = 0;  ///< Index into FlatLayout::parameters of the buffer.
  int owner = 0;              ///< The number of the owner's shard.
  std::int64_t offset = 0;    ///< Where its elements begin in the owner's part of a bucket.
};

/// Matrices whose elements travel together. Every owner has a part of equal length.
struct MatrixBucket {
  std::vector<OwnedMatrix> matrices;
  std::int64_t part_numel = 0;
};

/// The matrices of one buffer.
struct MatrixGroup {
  const FlatLayout* layout = nullptr;
  GroupRange range;
};

/// Gives each matrix an owner among `shards` ranks: in each bucket the most expensive matrix first, to the
/// rank that has the least to do so far. A bucket has consecutive buffers whose matrices have at most
/// `most_numel` elements, or one buffer. The order of everything is the same on all ranks.
///
/// Newton-Schulz of a matrix of m rows and n columns costs min(m, n)^2 * max(m, n).
std::vector<MatrixBucket> plan_matrix_owners(const std::vector<MatrixGroup>& groups, int shards,
                                             std::int64_t most_numel);

}  // namespace accel
