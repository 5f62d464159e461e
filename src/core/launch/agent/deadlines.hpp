#pragma once

#include <chrono>
#include <optional>

namespace accel::launch {

/// What the supervisor of a group does at which time, if at all.
struct Deadlines {
  using Clock = std::chrono::steady_clock;

  std::optional<Clock::time_point> kill;     ///< The workers are killed.
  std::optional<Clock::time_point> follow;   ///< All workers must be preempted, since some are.
  std::optional<Clock::time_point> abandon;  ///< Workers that outlive SIGKILL are left behind.
  std::optional<Clock::time_point> close;    ///< Pending output is dropped after an interrupt.

  void put_off(Clock::duration time) {
    for (auto* deadline : {&kill, &follow, &abandon, &close}) {
      if (*deadline) **deadline += time;
    }
  }

  /// The first of them.
  [[nodiscard]] std::optional<Clock::time_point> next() const {
    std::optional<Clock::time_point> first;
    for (const auto& deadline : {kill, follow, abandon, close}) {
      if (deadline && (!first || *deadline < *first)) first = deadline;
    }
    return first;
  }
};

}  // namespace accel::launch
