#include "core/launch/restart.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace accel::launch {

NextStep Restarts::after(int futile_allowed, bool made_progress, bool counts_progress) {
  constexpr std::chrono::milliseconds kFirstPause{1000};
  constexpr int kMostDoublings = 5;
  if (most_ == 0) return {};
  if (futile_allowed == 0) return {false, {}, "a restart would fail in the same way"};
  futile_ = made_progress ? 0 : futile_ + 1;
  if (counts_progress && futile_ > futile_allowed) {
    return {false,
            {},
            fmt::format("{} without progress", futile_allowed == 1
                                                   ? std::string("it has been restarted")
                                                   : fmt::format("{} restarts in a row", futile_allowed))};
  }
  if (count_ == most_)
    return {false, {}, fmt::format("it has been restarted {} times (launch.max_restarts)", most_)};
  ++count_;
  const auto pause = futile_ <= 1 ? std::chrono::milliseconds(0)
                                  : kFirstPause * (1 << std::min(futile_ - 2, kMostDoublings));
  return {true, pause, ""};
}

}  // namespace accel::launch
