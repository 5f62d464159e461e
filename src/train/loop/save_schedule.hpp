#pragma once

#include <chrono>
#include <cstdint>

#include "core/config/config.hpp"

namespace accel::train {

/// Decides after which steps a checkpoint is saved. Every rank decides the same.
class SaveSchedule {
 public:
  using Clock = std::chrono::steady_clock;

  explicit SaveSchedule(const config::CheckpointConfig& config) : config_(config) {}

  /// What rank 0 says before a step: 1 if the minutes between two checkpoints have passed. Only its clock
  /// counts.
  [[nodiscard]] double vote(int rank, Clock::time_point now = Clock::now()) const {
    const bool counts = rank == 0 && config_.every_minutes > 0;
    return counts && now - last_ >= std::chrono::duration<double, std::ratio<60>>(config_.every_minutes) ? 1
                                                                                                         : 0;
  }
  /// Whether a checkpoint is due after `step`. `votes` is the sum of vote() over the ranks; `in_flight` says
  /// that the last save has not ended.
  [[nodiscard]] bool is_due(std::int64_t step, double votes, bool in_flight) const {
    if (config_.every > 0 && step % config_.every == 0) return true;
    return votes > 0 || (config_.continuously && !in_flight);
  }
  /// A save has begun.
  void began(Clock::time_point now = Clock::now()) { last_ = now; }

 private:
  config::CheckpointConfig config_;
  Clock::time_point last_ = Clock::now();
};

}  // namespace accel::train
