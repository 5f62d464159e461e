#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/layout/flat_layout.hpp"

namespace accel {

/// The matrices of one buffer.
struct MatrixGroup {
  const FlatLayout* layout = nullptr;
  GroupRange range;
};

/// A matrix whose update one rank of the shard group computes.
struct OwnedMatrix {
  std::size_t group = 0;      ///< Index into the groups that were planned.
  std::size_t parameter = 0;  ///< Index into FlatLayout::parameters of the buffer.
  int owner = 0;              ///< The number of the owner's shard.
};

/// Buffers whose matrices are orthogonalized at the same time, each by its owner.
struct MatrixBucket {
  std::size_t first = 0;  ///< The first of the groups.
  std::size_t end = 0;    ///< Behind the last.
  std::vector<OwnedMatrix> matrices;
};

/// Gives each matrix an owner among `shards` ranks: in each bucket the most expensive matrix first, to the
/// rank that has the least to do so far. A bucket has consecutive groups whose buffers have at most
/// `most_numel` elements, or one group. The order of everything is the same on all ranks.
///
/// Newton-Schulz of a matrix of m rows and n columns costs min(m, n)^2 * max(m, n).
std::vector<MatrixBucket> plan_matrix_owners(const std::vector<MatrixGroup>& groups, int shards,
                                             std::int64_t most_numel);

}  // namespace accel
