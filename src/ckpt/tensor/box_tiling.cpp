#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/host/large_memory.hpp"
#include "ckpt/tensor/box.hpp"

namespace accel::ckpt {
namespace {

// Looks for two boxes that share an element. Planes between boxes split them into groups, along one dimension
// after another, until each box is alone: a grid takes one round for each of its dimensions. Where no plane
// passes between the boxes of a group, one is put through them, and a box that it cuts belongs to both sides.
class OverlapFinder {
 public:
  OverlapFinder(std::span<const BoxView> boxes, std::size_t dims) : boxes_(boxes), dims_(dims) {
    // Some hundred rounds. The boxes of a sharding take a few.
    work_left_ = kFreeWork + kWorkPerBox * boxes.size() * (dims + 1);
  }

  void run() {
    Group all{{}, Dims(dims_, INT64_MIN), Dims(dims_, INT64_MAX)};
    for (std::uint32_t i = 0; i < boxes_.size(); ++i) {
      const std::span<const std::int64_t> sizes = boxes_[i].sizes;
      if (std::find(sizes.begin(), sizes.end(), 0) == sizes.end()) all.boxes.push_back(i);
    }
    groups_.push_back(std::move(all));
    while (!groups_.empty()) {
      const Group group = std::move(groups_.back());
      groups_.pop_back();
      if (group.boxes.size() <= kFewBoxes) {
        compare_all(group);
      } else if (!split(group)) {
        cut(group);
      }
    }
  }

 private:
  static constexpr std::uint64_t kFreeWork = 10'000'000;
  static constexpr std::uint64_t kWorkPerBox = 24;
  static constexpr std::size_t kFewBoxes = 8;

  // Some of the boxes, cut to a region.
  struct Group {
    LargeVector<std::uint32_t> boxes;
    Dims begin;
    Dims end;
  };

  // The range of a box in one dimension.
  struct Interval {
    std::int64_t begin;
    std::int64_t end;
    std::uint32_t box;
  };

  void spend(std::uint64_t work) {
    if (work > work_left_) {
      throw Error(ErrorKind::kCorrupt,
                  fmt::format("{} chunks lie too irregularly to be checked for overlaps", boxes_.size()));
    }
    work_left_ -= work;
  }

  [[noreturn]] void reject(std::uint32_t a, std::uint32_t b) const {
    throw Error(ErrorKind::kCorrupt,
                fmt::format("chunks {} and {} overlap", to_string(boxes_[std::min(a, b)]),
                            to_string(boxes_[std::max(a, b)])));
  }

  void compare_all(const Group& group) {
    spend(group.boxes.size());
    for (std::size_t i = 1; i < group.boxes.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        if (overlap(boxes_[group.boxes[j]], boxes_[group.boxes[i]])) reject(group.boxes[j], group.boxes[i]);
      }
    }
  }

  LargeVector<Interval> sorted_along(const Group& group, std::size_t dim) {
    spend(group.boxes.size());
    LargeVector<Interval> intervals;
    intervals.reserve(group.boxes.size());
    for (const std::uint32_t i : group.boxes) {
      const std::int64_t begin = boxes_[i].offsets[dim];
      const std::int64_t end = begin + boxes_[i].sizes[dim];
      intervals.push_back({std::max(begin, group.begin[dim]), std::min(end, group.end[dim]), i});
    }
    const auto less = [](const Interval& a, const Interval& b) { return a.begin < b.begin; };
    if (!std::is_sorted(intervals.begin(), intervals.end(), less))
      std::stable_sort(intervals.begin(), intervals.end(), less);
    return intervals;
  }

  // Splits along the first dimension that has planes between boxes.
  bool split(const Group& group) {
    for (std::size_t dim = 0; dim < dims_; ++dim) {
      const LargeVector<Interval> intervals = sorted_along(group, dim);
      std::size_t first = 0;  // The first box since the last plane.
      std::int64_t end = intervals.front().end;
      for (std::size_t i = 1; i < intervals.size(); ++i) {
        if (intervals[i].begin >= end) {
          push(group, std::span(intervals).subspan(first, i - first));
          first = i;
        }
        end = std::max(end, intervals[i].end);
      }
      if (first == 0) continue;
      push(group, std::span(intervals).subspan(first));
      return true;
    }
    return false;
  }

  void push(const Group& group, std::span<const Interval> intervals) {
    if (intervals.size() < 2) return;
    Group part{{}, group.begin, group.end};
    part.boxes.reserve(intervals.size());
    for (const Interval& interval : intervals) part.boxes.push_back(interval.box);
    groups_.push_back(std::move(part));
  }

  // Splits at the median begin, in the dimension in which the most boxes begin at different places.
  void cut(const Group& group) {
    std::size_t best = 0;
    std::vector<std::int64_t> best_begins;
    for (std::size_t dim = 0; dim < dims_; ++dim) {
      std::vector<std::int64_t> begins;
      for (const Interval& interval : sorted_along(group, dim)) {
        if (begins.empty() || begins.back() != interval.begin) begins.push_back(interval.begin);
      }
      if (begins.size() <= best_begins.size()) continue;
      best = dim;
      best_begins = std::move(begins);
    }
    // All boxes begin in one corner, so they share the element there.
    if (best_begins.size() < 2) reject(group.boxes[0], group.boxes[1]);
    const std::int64_t plane = best_begins[best_begins.size() / 2];
    Group below{{}, group.begin, group.end};
    Group above{{}, group.begin, group.end};
    below.end[best] = plane;
    above.begin[best] = plane;
    for (const std::uint32_t i : group.boxes) {
      const std::int64_t begin = boxes_[i].offsets[best];
      if (begin < plane) below.boxes.push_back(i);
      if (begin + boxes_[i].sizes[best] > plane) above.boxes.push_back(i);
    }
    groups_.push_back(std::move(below));
    groups_.push_back(std::move(above));
  }

  std::span<const BoxView> boxes_;
  std::size_t dims_;
  std::uint64_t work_left_;
  std::vector<Group> groups_;
};

std::vector<BoxView> views_of(std::span<const Box> boxes) { return {boxes.begin(), boxes.end()}; }

}  // namespace

void check_disjoint(std::span<const Box> boxes) { check_disjoint(views_of(boxes)); }

void check_disjoint(std::span<const BoxView> boxes) {
  if (boxes.size() < 2) return;
  OverlapFinder(boxes, boxes.front().offsets.size()).run();
}

void check_tiling(std::span<const Box> boxes, const Dims& shape) { check_tiling(views_of(boxes), shape); }

void check_tiling(std::span<const BoxView> boxes, const Dims& shape) {
  std::int64_t covered = 0;
  for (const BoxView& box : boxes) {
    check_within(box, shape);
    covered = checked_add(covered, box.numel());
  }
  check_disjoint(boxes);
  const std::int64_t numel = checked_numel(shape);
  if (covered != numel) {
    throw Error(ErrorKind::kCorrupt, fmt::format("the chunks cover {} of {} elements", covered, numel));
  }
}

}  // namespace accel::ckpt
