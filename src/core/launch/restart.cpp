#include "core/launch/restart.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace accel::launch {

NextStep Restarts::after(int most_without_progress, bool made_progress, bool counts_progress) {
  constexpr std::chrono::milliseconds kFirstPause{1000};
  constexpr int kMostDoublings = 5;
  if (most_ == 0) return {};
  if (most_without_progress == 0) return {false, {}, "a restart would fail in the same way"};
  without_progress_ = made_progress ? 0 : without_progress_ + 1;
  if (counts_progress && without_progress_ > most_without_progress) {
    return {
        false,
        {},
        fmt::format("{} without progress", most_without_progress == 1
                                               ? std::string("it has been restarted")
                                               : fmt::format("{} restarts in a row", most_without_progress))};
  }
  if (count_ == most_)
    return {false, {}, fmt::format("it has been restarted {} times (launch.max_restarts)", most_)};
  ++count_;
  const auto pause = without_progress_ <= 1
                         ? std::chrono::milliseconds(0)
                         : kFirstPause * (1 << std::min(without_progress_ - 2, kMostDoublings));
  return {true, pause, ""};
}

}  // namespace accel::launch
