#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "core/launch/agent/plan.hpp"

namespace accel::launch {

/// A line of `accel launch --json`: an object with the type, the time in seconds since 1970, and `fields`.
std::string event_line(const char* type, const nlohmann::ordered_json& fields);

/// Notices the checkpoints that rank 0 of the plan has completed, by its flight record.
class CheckpointWatch {
 public:
  using Clock = std::chrono::steady_clock;

  /// Watches only if the plan asks for events and has rank 0 of a training.
  explicit CheckpointWatch(const LaunchPlan& plan);

  /// When to call serve(); nothing if it need not be called.
  [[nodiscard]] std::optional<Clock::time_point> deadline() const;
  /// The line of the event if there is a new checkpoint, else an empty text. With `now` it looks even if it
  /// has done so just before.
  std::string serve(bool now = false);

 private:
  std::filesystem::path record_;
  Clock::time_point next_ = Clock::now();
  std::int64_t last_ = 0;
};

}  // namespace accel::launch
