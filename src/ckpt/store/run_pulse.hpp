#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <utility>

namespace accel::ckpt {

/// Whether the run in a directory goes on, as seen by a process that does not take its RunLock.
class RunPulse {
 public:
  explicit RunPulse(std::filesystem::path folder) : folder_(std::move(folder)) {}

  /// Whether an owner of the lock lives. One on this kernel lives as long as it has the lock. Any other lives
  /// as long as its beats go on, so that its end is seen late. Call it at least every few seconds.
  [[nodiscard]] bool lives();

 private:
  using Clock = std::chrono::steady_clock;

  std::filesystem::path folder_;
  std::optional<std::int64_t> beat_;  ///< The last beat that was seen.
  Clock::time_point beat_at_;
};

}  // namespace accel::ckpt
