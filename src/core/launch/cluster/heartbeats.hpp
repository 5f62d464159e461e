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

  /// Sets what the heartbeats say: for how long the ranks of this machine have written nothing. It is absent
  /// if none of them runs.
  void set_silence(std::optional<std::chrono::milliseconds> silence);

 private:
  void send();

  const std::vector<std::shared_ptr<Outgoing>> connections_;
  const std::chrono::milliseconds interval_;
  std::mutex mutex_;  ///< Guards what follows, up to the thread.
  std::condition_variable changed_;
  bool ends_ = false;
  std::optional<std::chrono::milliseconds> silence_{0};
  std::thread thread_;
};

}  // namespace accel::launch
