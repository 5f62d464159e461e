#include "plan/prefetch_schedule.hpp"

#include <algorithm>
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
  if (candidate_ == &unit) candidate_ = nullptr;
  if (std::exchange(entries_[&unit].is_unsharded, true)) return false;
  most_unsharded_ = std::max(most_unsharded_, ++unsharded_);
  return true;
}

bool PrefetchSchedule::on_reshard(const PrefetchUnit& unit) {
  if (!std::exchange(entries_[&unit].is_unsharded, false)) return false;
  --unsharded_;
  return true;
}

void PrefetchSchedule::gather_candidate() {
  if (candidate_ == nullptr || unsharded_ >= kMostUnsharded) return;
  if (!entries_[candidate_].is_unsharded) ++gathered_ahead_;
  candidate_->start_unshard();
}

void PrefetchSchedule::prefetch_forward(const PrefetchUnit& unit, const PrefetchUnit* recomputing) {
  if (is_recording_) return;
  PrefetchUnit* next = next_in_forward(unit, recomputing);
  if (next == nullptr) return;
  candidate_ = next;
  gather_candidate();
}

void PrefetchSchedule::prefetch_backward(const PrefetchUnit& unit, bool recomputes) {
  if (is_recording_) return;
  PrefetchUnit* next = next_in_backward(unit, recomputes);
  if (next == nullptr) return;
  candidate_ = next;
  next->fetch_activations();
  gather_candidate();
}

// Recomputation in backward follows the order of forward, but ends with the last unit inside `recomputing`.
PrefetchUnit* PrefetchSchedule::next_in_forward(const PrefetchUnit& unit,
                                                const PrefetchUnit* recomputing) const {
  const Entry& entry = entries_.at(&unit);
  if (!entry.begin) return nullptr;
  const std::size_t end = recomputing == nullptr ? begins_.size() : entries_.at(recomputing).inner_end;
  return *entry.begin + 1 < end ? begins_[*entry.begin + 1] : nullptr;
}

// A unit that recomputes runs the units inside it first. A unit whose backward is done, or never comes as
// with frozen units in front, is not gathered: nothing would free it before the end of backward.
PrefetchUnit* PrefetchSchedule::next_in_backward(const PrefetchUnit& unit, bool recomputes) const {
  const Entry& entry = entries_.at(&unit);
  if (!entry.end) return nullptr;
  if (recomputes && *entry.begin + 1 < entry.inner_end) return begins_[*entry.begin + 1];
  for (std::size_t i = *entry.end; i-- > 0;) {
    if (ends_[i]->awaits_backward()) return ends_[i];
  }
  return nullptr;
}

}  // namespace accel
