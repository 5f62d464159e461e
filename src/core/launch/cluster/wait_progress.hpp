#pragma once

#include <fmt/format.h>

#include <chrono>
#include <string>

#include "base/seconds.hpp"

namespace accel::launch {

/// How long a poll() lasts before the waiting launcher looks at signals and time limits.
inline constexpr std::chrono::milliseconds kTick{200};

/// A wait with a time limit, of which the log reports now and then.
class WaitProgress {
 public:
  /// The first report is due after `first_report_s`, later ones every 30 s.
  WaitProgress(double limit_s, double first_report_s) : limit_(limit_s), next_report_(first_report_s) {}

  [[nodiscard]] double seconds() const { return seconds_since(began_); }
  [[nodiscard]] bool is_over() const { return seconds() >= limit_; }
  /// "10 s of 300 s".
  [[nodiscard]] std::string text() const { return text_of(limit_); }
  [[nodiscard]] std::string text_of(double limit_s) const {
    return fmt::format("{:.0f} s of {:.0f} s", seconds(), limit_s);
  }
  /// Whether to report now.
  bool is_due() {
    if (seconds() < next_report_) return false;
    constexpr double kReportInterval = 30;
    next_report_ = seconds() + kReportInterval;
    return true;
  }

 private:
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  double limit_;
  double next_report_;
};

}  // namespace accel::launch
