#pragma once

#include <chrono>
#include <string>

namespace accel::launch {

/// What follows a failed attempt of a run.
struct NextStep {
  bool is_restart = false;
  std::chrono::milliseconds pause{0};  ///< Before the restart.
  std::string why_not;                 ///< Why there is no restart; empty if none was asked for.
};

/// Counts the restarts of a run and decides about the next one.
class Restarts {
 public:
  explicit Restarts(int most) : most_(most) {}

  /// Decides after a failure. `most_without_progress` is what restarts_without_progress() says of it;
  /// `made_progress` is whether the failed attempt left something that the next one can begin with.
  /// `counts_progress` is false for a program of which nobody knows what its progress is: then only the
  /// number of restarts limits them.
  NextStep after(int most_without_progress, bool made_progress, bool counts_progress);

  [[nodiscard]] int count() const { return count_; }
  [[nodiscard]] int most() const { return most_; }

 private:
  int most_;
  int count_ = 0;
  int without_progress_ = 0;  ///< Attempts in a row without progress.
};

}  // namespace accel::launch
