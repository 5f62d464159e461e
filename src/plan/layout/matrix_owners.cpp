#include "plan/layout/matrix_owners.hpp"

#include <algorithm>
#include <numeric>

namespace accel {
namespace {

double cost_of(const FlatParameter& matrix) {
  const auto rows = static_cast<double>(matrix.spec.shape.at(0));
  const auto columns = static_cast<double>(matrix.spec.shape.at(1));
  return std::min(rows, columns) * std::min(rows, columns) * std::max(rows, columns);
}

/// Adds the matrices of the groups [first, end) as a bucket. `loads` is what each rank has to do.
MatrixBucket bucket_of(const std::vector<MatrixGroup>& groups, std::size_t first, std::size_t end,
                       std::vector<double>& loads) {
  MatrixBucket bucket{first, end, {}};
  std::vector<double> costs;
  for (std::size_t g = first; g < end; ++g) {
    for (std::size_t i = groups[g].range.first; i < groups[g].range.end; ++i) {
      if (groups[g].layout->parameters[i].numel == 0) continue;
      bucket.matrices.push_back({g, i, 0});
      costs.push_back(cost_of(groups[g].layout->parameters[i]));
    }
  }
  std::vector<std::size_t> order(costs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return costs[a] > costs[b]; });
  for (const std::size_t at : order) {
    const auto owner = std::min_element(loads.begin(), loads.end());
    *owner += costs[at];
    bucket.matrices[at].owner = static_cast<int>(owner - loads.begin());
  }
  return bucket;
}

}  // namespace

std::vector<MatrixBucket> plan_matrix_owners(const std::vector<MatrixGroup>& groups, int shards,
                                             std::int64_t most_numel) {
  std::vector<MatrixBucket> buckets;
  std::vector<double> loads(static_cast<std::size_t>(shards), 0);
  for (std::size_t first = 0; first < groups.size();) {
    std::size_t end = first + 1;
    std::int64_t numel = groups[first].layout->numel();
    while (end < groups.size() && numel + groups[end].layout->numel() <= most_numel)
      numel += groups[end++].layout->numel();
    MatrixBucket bucket = bucket_of(groups, first, end, loads);
    if (!bucket.matrices.empty()) buckets.push_back(std::move(bucket));
    first = end;
  }
  return buckets;
}

}  // namespace accel
