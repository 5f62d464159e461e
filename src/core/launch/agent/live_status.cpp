#include "core/launch/agent/live_status.hpp"

#include <unistd.h>

#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/files/flight_record.hpp"
#include "base/host/threads.hpp"
#include "base/terminal.hpp"

namespace accel::launch {
namespace {

constexpr std::chrono::milliseconds kLook{250};

/// Whether stderr is a terminal on which another job is in the foreground, which the lines would disturb.
bool would_disturb_others() {
  const pid_t foreground = ::tcgetpgrp(STDERR_FILENO);
  return foreground >= 0 && foreground != ::getpgrp();
}

}  // namespace

struct LiveStatus::State {
  void make_lines();

  StatusSource source;
  std::filesystem::path record;  ///< The flight record of rank 0.
  std::mutex mutex;              ///< Guards what follows.
  std::condition_variable changed;
  std::vector<std::string> lines;
  bool ends = false;
  bool has_ended = false;
};

LiveStatus::LiveStatus(const LaunchPlan& plan, Terminal& terminal) : terminal_(terminal) {
  if (!plan.status || plan.workers.empty() || plan.workers.front().rank != 0) return;
  if (plan.workers.front().flight_record.empty()) return;
  state_ = std::make_shared<State>();
  state_->source = plan.status;
  state_->record = plan.workers.front().flight_record;
  try {
    thread_ = thread_without_signals([state = state_] { state->make_lines(); });
  } catch (const std::exception&) {
    state_ = nullptr;  // A run needs no status.
  }
}

LiveStatus::~LiveStatus() { end(); }

std::optional<LiveStatus::Clock::time_point> LiveStatus::deadline() const {
  return state_ == nullptr ? std::nullopt : std::optional(next_);
}

void LiveStatus::serve() {
  if (state_ == nullptr || Clock::now() < next_) return;
  next_ = Clock::now() + kLook;
  if (would_disturb_others()) return hide();
  const std::lock_guard lock(state_->mutex);
  terminal_.show_below(state_->lines);
}

void LiveStatus::end() {
  if (state_ == nullptr) return;
  hide();
  bool has_ended = false;
  {
    std::unique_lock lock(state_->mutex);
    state_->ends = true;
    state_->changed.notify_all();
    has_ended = state_->changed.wait_for(lock, std::chrono::seconds(1), [this] { return state_->has_ended; });
  }
  has_ended ? thread_.join() : thread_.detach();
  state_.reset();
}

void LiveStatus::State::make_lines() {
  std::unique_lock lock(mutex);
  while (!ends) {
    lock.unlock();
    std::vector<std::string> made;
    bool fails = false;
    try {
      const auto progress = read_flight_progress(record);
      if (progress && progress->step > 0) made = source(progress->step, redrawn_width(STDERR_FILENO));
    } catch (const std::exception&) {
      fails = true;  // A file of the run is damaged, which is no matter of the lines.
    }
    lock.lock();
    lines = std::move(made);
    if (fails) break;
    changed.wait_for(lock, kLook, [this] { return ends; });
  }
  has_ended = true;
  changed.notify_all();
}

}  // namespace accel::launch
