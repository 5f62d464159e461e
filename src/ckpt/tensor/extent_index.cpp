#include "ckpt/tensor/extent_index.hpp"

#include <algorithm>
#include <numeric>

namespace accel::ckpt {
namespace {

std::size_t count_starts(std::span<const Extent> extents, std::size_t dim) {
  std::vector<std::int64_t> starts;
  starts.reserve(extents.size());
  for (const Extent& extent : extents) starts.push_back(extent.box.offsets[dim]);
  std::sort(starts.begin(), starts.end());
  return static_cast<std::size_t>(std::unique(starts.begin(), starts.end()) - starts.begin());
}

std::size_t best_dimension(std::span<const Extent> extents) {
  std::size_t best = 0;
  std::size_t best_count = 0;
  for (std::size_t d = 0; d < extents.front().box.offsets.size(); ++d) {
    const std::size_t count = count_starts(extents, d);
    if (count > best_count) {
      best = d;
      best_count = count;
    }
  }
  return best;
}

}  // namespace

ExtentIndex::ExtentIndex(std::span<const Extent> extents) : data_(extents.data()), order_(extents.size()) {
  std::iota(order_.begin(), order_.end(), std::size_t{0});
  if (extents.empty() || extents.front().box.offsets.empty()) return;
  dim_ = best_dimension(extents);
  const auto begin_of = [&](std::size_t i) { return extents[i].box.offsets[dim_]; };
  std::stable_sort(order_.begin(), order_.end(),
                   [&](std::size_t a, std::size_t b) { return begin_of(a) < begin_of(b); });
  begins_.reserve(order_.size());
  ends_.reserve(order_.size());
  for (const std::size_t i : order_) {
    const std::int64_t end = begin_of(i) + extents[i].box.sizes[dim_];
    begins_.push_back(begin_of(i));
    ends_.push_back(ends_.empty() ? end : std::max(ends_.back(), end));
  }
}

std::span<const std::size_t> ExtentIndex::candidates(const Box& box) const {
  // There is nothing to sort by: a 0-dim tensor, no extents, or a box with fewer dimensions than the tensor.
  if (begins_.empty() || dim_ >= box.offsets.size()) return order_;
  const std::int64_t begin = box.offsets[dim_];
  const std::int64_t end = begin + box.sizes[dim_];
  const auto last = std::lower_bound(begins_.begin(), begins_.end(), end) - begins_.begin();
  const auto first = std::upper_bound(ends_.begin(), ends_.begin() + last, begin) - ends_.begin();
  return std::span(order_).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(last - first));
}

}  // namespace accel::ckpt
