#include "core/launch/cluster/heartbeats.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/host/threads.hpp"

namespace accel::launch {

Heartbeats::Heartbeats(std::vector<std::shared_ptr<Outgoing>> connections, std::chrono::milliseconds interval)
    : connections_(std::move(connections)),
      interval_(interval),
      thread_(thread_without_signals([this] { send(); })) {}

Heartbeats::~Heartbeats() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Heartbeats::set_silence(std::optional<std::chrono::milliseconds> silence) {
  const std::lock_guard lock(mutex_);
  silence_ = silence;
}

void Heartbeats::show_work() {
  const std::lock_guard lock(mutex_);
  worked_at_ = std::chrono::steady_clock::now();
}

void Heartbeats::send() {
  const auto in_message = [](std::chrono::milliseconds time) {
    return std::min<std::int64_t>(time.count(), INT32_MAX);
  };
  std::unique_lock lock(mutex_);
  while (!ends_) {
    const auto idle = std::chrono::steady_clock::now() - worked_at_;
    nlohmann::json beat = {{"beat", in_message(std::chrono::duration_cast<std::chrono::milliseconds>(idle))}};
    if (silence_) beat["silent_ms"] = in_message(*silence_);
    lock.unlock();
    for (const auto& connection : connections_) connection->beat(beat);
    lock.lock();
    changed_.wait_for(lock, interval_, [this] { return ends_; });
  }
}

}  // namespace accel::launch
