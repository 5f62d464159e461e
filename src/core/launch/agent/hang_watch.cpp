#include "core/launch/agent/hang_watch.hpp"

#include <algorithm>
#include <fstream>

#include "base/host/host_name.hpp"
#include "core/launch/hang/outside.hpp"

namespace accel::launch {
namespace {

using Clock = HangWatch::Clock;

/// How often to look for progress, and whether a look has ended.
constexpr auto kInterval = std::chrono::milliseconds(500);
constexpr auto kSoon = std::chrono::milliseconds(50);
/// How long the stacks of all ranks may take.
constexpr auto kPatience = std::chrono::seconds(15);

double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

HangWatch::HangWatch(const LaunchPlan& plan, Peers* peers)
    : plan_(plan),
      peers_(peers),
      limit_(std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(plan.hang_timeout_s))),
      next_(Clock::now() + kInterval) {}

HangWatch::~HangWatch() {
  cancelled_ = true;
  if (thread_.joinable()) thread_.join();
}

void HangWatch::add(pid_t pid) {
  const WorkerPlan& plan = plan_.workers.at(ranks_.size());
  if (!plan.flight_record.empty()) set_flight_pid(plan.flight_record, pid);
  ranks_.push_back({&plan, pid, 0, Clock::now()});
}

void HangWatch::begin_again() { began_ = Clock::now(); }

std::optional<Clock::time_point> HangWatch::deadline() const {
  if (is_looking()) return Clock::now() + kSoon;
  return limit_.count() > 0 ? std::optional(next_) : std::nullopt;
}

bool HangWatch::is_stuck(Rank& rank, Clock::time_point now) const {
  const auto progress = read_flight_progress(rank.plan->flight_record);
  if (!progress) return false;
  if (progress->events != rank.progress || progress->step == 0) {
    rank.progress = progress->events;
    rank.changed = now;
  }
  if (now - std::max(rank.changed, began_) < limit_) return false;
  const auto record = read_flight_record(rank.plan->flight_record);
  return record && !is_in_host_work(*record);
}

/// Returns for how long no rank of this machine has written anything; nothing if none of them runs.
std::optional<std::chrono::milliseconds> HangWatch::silence(const std::vector<Life>& lives) const {
  bool any_runs = false;
  Clock::time_point last = began_;
  for (const Life& life : lives) {
    any_runs |= life.is_running;
    last = std::max(last, life.last_output);
  }
  if (!any_runs) return std::nullopt;
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - last);
}

bool HangWatch::hangs(const std::vector<Life>& lives) {
  const Clock::time_point now = Clock::now();
  if (limit_.count() <= 0 || is_looking() || now < next_) return false;
  next_ = now + kInterval;
  if (plan_.catches_stop_signals) {
    bool any_stuck = false;
    for (std::size_t i = 0; i < ranks_.size(); ++i)
      any_stuck |= lives[i].is_running && is_stuck(ranks_[i], now);
    return any_stuck;
  }
  const auto here = silence(lives);
  if (peers_ != nullptr) peers_->report_silence(here);
  if (peers_ != nullptr && !peers_->decides()) return false;
  const auto elsewhere = peers_ == nullptr ? std::nullopt : peers_->silence_elsewhere();
  if (!here && !elsewhere) return false;
  constexpr auto kForever = std::chrono::milliseconds::max();
  return std::min(here.value_or(kForever), elsewhere.value_or(kForever)) >= limit_;
}

void HangWatch::look(const std::vector<Life>& lives) {
  if (is_looking()) return;
  hang_ = {plan_.hang_timeout_s, plan_.catches_stop_signals, {}};
  std::vector<Rank> running;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    if (!lives[i].is_running) continue;
    running.push_back(ranks_[i]);
    RankStatus status;
    status.silent_s = seconds(Clock::now() - lives[i].last_output);
    hang_.ranks.push_back(std::move(status));
  }
  done_ = false;
  thread_ = std::thread([this, running = std::move(running)] {
    const Clock::time_point until = Clock::now() + kPatience;
    for (std::size_t i = 0; i < running.size(); ++i) {
      RankStatus& status = hang_.ranks[i];
      if (auto record = read_flight_record(running[i].plan->flight_record))
        status.record = std::move(*record);
      status.record.rank = running[i].plan->rank;
      status.record.pid = running[i].pid;
      status.record.host = host_name();
      status.seen_ns = nanoseconds_since_1970();
      status.state = state_of_process(running[i].pid);
    }
    // The stacks come last, because taking one stops its process.
    for (std::size_t i = 0; i < running.size(); ++i) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
      RankStatus& status = hang_.ranks[i];
      status.stacks = stacks_of_process(running[i].pid, left, cancelled_);
      if (running[i].plan->log_dir.empty() || status.stacks.empty()) continue;
      const std::filesystem::path file = running[i].plan->log_dir / "stacks.txt";
      std::ofstream(file) << status.stacks;
      status.stacks_file = file.string();
    }
    done_ = true;
  });
}

std::optional<Hang> HangWatch::seen() {
  if (!thread_.joinable() || !done_) return std::nullopt;
  thread_.join();
  return std::move(hang_);
}

}  // namespace accel::launch
