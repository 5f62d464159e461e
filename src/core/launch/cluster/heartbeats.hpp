#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "core/launch/cluster/connection.hpp"

namespace accel::launch {

/// When heartbeats are sent and missed.
struct HeartbeatTimes {
  std::chrono::milliseconds timeout{20'000};  ///< launch.heartbeat_timeout: a machine silent so long is lost.
  /// A launcher that sends heartbeats and does nothing else for so long is lost, too. A file server that
  /// fails over may hold it up for minutes.
  [[nodiscard]] std::chrono::milliseconds work_timeout() const { return 10 * timeout; }

  [[nodiscard]] std::chrono::milliseconds interval() const {
    return std::min(timeout / 10, std::chrono::milliseconds(2000));
  }
  /// Two machines see that the other one is lost at times that differ by no more than this.
  [[nodiscard]] std::chrono::milliseconds loss_margin() const { return 2 * interval(); }
};

/// Sends heartbeats from a thread of its own, so that nothing that the launcher does delays them.
class Heartbeats {
 public:
  Heartbeats(std::vector<std::shared_ptr<Outgoing>> connections, std::chrono::milliseconds interval);
  Heartbeats(const Heartbeats&) = delete;
  Heartbeats& operator=(const Heartbeats&) = delete;
  ~Heartbeats();

  /// The heartbeats say for how long the ranks of this machine have written nothing. `silence` is absent if
  /// none of them runs.
  void set_silence(std::optional<std::chrono::milliseconds> silence);
  /// The heartbeats say how long ago this was last called: the launcher is at work.
  void show_work();

 private:
  void send();

  const std::vector<std::shared_ptr<Outgoing>> connections_;
  const std::chrono::milliseconds interval_;
  std::mutex mutex_;  ///< Guards ends_, silence_ and worked_at_.
  std::condition_variable changed_;
  bool ends_ = false;
  std::optional<std::chrono::milliseconds> silence_{0};
  std::chrono::steady_clock::time_point worked_at_ = std::chrono::steady_clock::now();
  std::thread thread_;
};

}  // namespace accel::launch
