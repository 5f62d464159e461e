#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <thread>

#include "core/launch/agent/plan.hpp"
#include "core/launch/output/terminal.hpp"

namespace accel::launch {

/// Keeps the lines of LaunchPlan::status below the output of the ranks, as long as this process is in the
/// foreground of its terminal and rank 0 has begun a step. A thread of its own makes the lines, since they
/// come from files. What it throws ends the lines, and not the run.
class LiveStatus {
 public:
  using Clock = std::chrono::steady_clock;

  /// Shows nothing if the plan has no source of lines or rank 0 runs elsewhere. `terminal` must outlive this
  /// object.
  LiveStatus(const LaunchPlan& plan, Terminal& terminal);
  LiveStatus(const LiveStatus&) = delete;
  LiveStatus& operator=(const LiveStatus&) = delete;
  /// Ends the thread. One that waits for a file server is left behind.
  ~LiveStatus();

  /// When to call serve(); nothing if it need not be called.
  [[nodiscard]] std::optional<Clock::time_point> deadline() const;
  /// Shows the newest lines.
  void serve();
  /// Removes the lines until serve() is called.
  void hide() { terminal_.show_below({}); }
  /// Removes the lines for good.
  void end();

 private:
  struct State;

  Terminal& terminal_;
  std::shared_ptr<State> state_;  ///< The thread has it too. Null if there are no lines to show.
  std::thread thread_;
  Clock::time_point next_ = Clock::now();
};

}  // namespace accel::launch
