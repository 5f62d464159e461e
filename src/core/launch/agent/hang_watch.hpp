#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "core/launch/agent/peers.hpp"
#include "core/launch/agent/plan.hpp"
#include "core/launch/hang/hang_report.hpp"

namespace accel::launch {

/// Notices that the ranks of this machine make no progress, and looks where each of them stands.
///
/// Our worker makes progress when an operation of its flight record begins or ends, from its first step on
/// and unless it says that it is in long work of another kind. Of another program only the output is known:
/// it makes progress when any of its ranks writes something, on any machine of the run.
class HangWatch {
 public:
  using Clock = std::chrono::steady_clock;

  /// What the supervisor knows of a rank.
  struct Life {
    bool is_running = false;
    Clock::time_point last_output;
  };

  /// Without a time limit it only looks when look() is called. `peers` is null on a single machine.
  HangWatch(const LaunchPlan& plan, Peers* peers);
  HangWatch(const HangWatch&) = delete;
  HangWatch& operator=(const HangWatch&) = delete;
  ~HangWatch();

  /// The process of the plan's next rank, in order.
  void add(pid_t pid);

  /// Gives every rank the whole time limit again, because the ranks were stopped.
  void begin_again();

  /// When serve() is to be called at the latest; nothing if it need not be called.
  [[nodiscard]] std::optional<Clock::time_point> deadline() const;
  /// Whether the ranks hang, so that look() is to be called. `lives` are in the order of the plan.
  [[nodiscard]] bool hangs(const std::vector<Life>& lives);
  /// Begins to look at the ranks that run, on a thread of its own.
  void look(const std::vector<Life>& lives);
  [[nodiscard]] bool is_looking() const { return thread_.joinable(); }
  /// What was seen, once; nothing before the look has ended.
  [[nodiscard]] std::optional<Hang> seen();

 private:
  struct Rank {
    const WorkerPlan* plan;
    pid_t pid;
    std::uint64_t progress = 0;
    Clock::time_point changed;
  };

  [[nodiscard]] bool is_stuck(Rank& rank, Clock::time_point now) const;
  [[nodiscard]] std::optional<std::chrono::milliseconds> silence(const std::vector<Life>& lives) const;

  const LaunchPlan& plan_;
  Peers* peers_;
  Clock::duration limit_;
  std::vector<Rank> ranks_;
  Clock::time_point next_;
  Clock::time_point began_ = Clock::now();  ///< The time before it does not count.
  std::thread thread_;
  std::atomic<bool> done_ = false;
  std::atomic<bool> cancelled_ = false;
  Hang hang_;  ///< The thread's, until done_.
};

}  // namespace accel::launch
