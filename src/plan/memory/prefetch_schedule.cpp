#include "plan/memory/prefetch_schedule.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace accel {

void PrefetchSchedule::begin_call(PrefetchUnit& unit) {
  Entry& entry = entries_[&unit];
  if (!is_recording_ || entry.begin) return;
  entry.begin = begins_.size();
  begins_.push_back(&unit);
}

void PrefetchSchedule::end_call(PrefetchUnit& unit) {
  Entry& entry = entries_[&unit];
  if (!is_recording_ || entry.end) return;
  entry.end = ends_.size();
  ends_.push_back(&unit);
  entry.inner_end = begins_.size();
}

bool PrefetchSchedule::on_unshard(const PrefetchUnit& unit) {
  std::erase(candidates_, &unit);
  if (std::exchange(entries_[&unit].is_unsharded, true)) return false;
  most_unsharded_ = std::max(most_unsharded_, ++unsharded_);
  return true;
}

bool PrefetchSchedule::on_reshard(const PrefetchUnit& unit) {
  if (!std::exchange(entries_[&unit].is_unsharded, false)) return false;
  --unsharded_;
  return true;
}

void PrefetchSchedule::gather_candidates() {
  while (!candidates_.empty() && unsharded_ < most()) {
    PrefetchUnit& nearest = *candidates_.front();
    candidates_.erase(candidates_.begin());
    if (!entries_[&nearest].is_unsharded) ++gathered_ahead_;
    nearest.start_unshard();
  }
}

void PrefetchSchedule::prefetch_forward(const PrefetchUnit& unit, const PrefetchUnit* recomputing) {
  if (is_recording_) return;
  Units next = next_in_forward(unit, recomputing);
  if (next.empty()) return;
  candidates_ = std::move(next);
  gather_candidates();
}

void PrefetchSchedule::prefetch_backward(const PrefetchUnit& unit, bool recomputes) {
  if (is_recording_) return;
  Units next = next_in_backward(unit, recomputes);
  if (next.empty()) return;
  next.front()->fetch_activations();
  candidates_ = std::move(next);
  gather_candidates();
}

PrefetchSchedule::Units PrefetchSchedule::begins_after(std::size_t begin, std::size_t end) const {
  const std::size_t first = std::min(begin + 1, end);
  const std::size_t count = std::min(end - first, static_cast<std::size_t>(depth_));
  const auto from = begins_.begin() + static_cast<std::ptrdiff_t>(first);
  return {from, from + static_cast<std::ptrdiff_t>(count)};
}

// Recomputation in backward follows the order of forward, but ends with the last unit inside `recomputing`.
PrefetchSchedule::Units PrefetchSchedule::next_in_forward(const PrefetchUnit& unit,
                                                          const PrefetchUnit* recomputing) const {
  const Entry& entry = entries_.at(&unit);
  if (!entry.begin) return {};
  return begins_after(*entry.begin,
                      recomputing == nullptr ? begins_.size() : entries_.at(recomputing).inner_end);
}

// A unit that recomputes runs the units inside it first. A unit whose backward is done, or never comes as
// with frozen units in front, is not gathered: nothing would free it before the end of backward.
PrefetchSchedule::Units PrefetchSchedule::next_in_backward(const PrefetchUnit& unit, bool recomputes) const {
  const Entry& entry = entries_.at(&unit);
  if (!entry.end) return {};
  if (recomputes && *entry.begin + 1 < entry.inner_end) return begins_after(*entry.begin, entry.inner_end);
  Units next;
  for (std::size_t i = *entry.end; i-- > 0 && next.size() < static_cast<std::size_t>(depth_);) {
    if (ends_[i]->awaits_backward()) next.push_back(ends_[i]);
  }
  return next;
}

}  // namespace accel
