#include "core/launch/supervisor.hpp"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>

#include "base/exit_code.hpp"
#include "base/log.hpp"
#include "core/launch/environment.hpp"
#include "core/launch/guardian.hpp"
#include "core/launch/relay.hpp"
#include "core/launch/signals.hpp"
#include "core/launch/terminal.hpp"

namespace accel::core {
namespace {

using Clock = std::chrono::steady_clock;

/// How long output is awaited from a pipe whose worker has ended, for someone else may hold it.
constexpr auto kDrainTime = std::chrono::seconds(1);

/// What comes within this time of an interrupt is that one once more: GNU timeout signals its child, and then
/// the group that the child is in.
constexpr auto kOneRequest = std::chrono::milliseconds(100);

struct Worker {
  const WorkerPlan* plan;
  pid_t pid;
  Fd pidfd;
  Relay out;
  Relay err;
  std::optional<WorkerOutcome> outcome;
  Clock::time_point drain_until;
};

class Supervisor {
 public:
  Supervisor(const LaunchPlan& plan, int out_fd, int err_fd)
      : plan_(plan), guardian_(plan.run_id, plan.scratch), terminal_(out_fd, err_fd) {}
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;
  /// Only after an error are there workers left here.
  ~Supervisor() {
    for (Worker& worker : workers_) {
      if (worker.outcome) continue;
      ::kill(-worker.pid, SIGKILL);
      reap_with_group(worker.pid);
    }
    kill_strangers();
  }

  GroupOutcome run() {
    start();
    while (!finished()) {
      wait();
      serve_signals();
      terminal_.pump();
      serve_streams();
      collect();
      serve_deadlines();
    }
    kill_strangers();
    GroupOutcome result;
    result.interrupted_by = interrupted_by_;
    for (Worker& worker : workers_) result.workers.push_back(outcome_with_lines(worker));
    return result;
  }

 private:
  void start() {
    workers_.reserve(plan_.workers.size());
    for (const WorkerPlan& worker : plan_.workers) {
      SpawnRequest request;
      request.command = plan_.command;
      request.environment = merged_environment(worker.variables);
      request.signal_mask = signals_.previous_mask();
      request.announce_fd = guardian_.announce_fd();
      Child child = spawn(request);
      // A worker that no entry of workers_ knows would be left behind by an error here.
      try {
        workers_.push_back(Worker{&worker,
                                  child.pid,
                                  std::move(child.pidfd),
                                  out_relay(worker, std::move(child.out)),
                                  err_relay(worker, std::move(child.err)),
                                  std::nullopt,
                                  {}});
      } catch (...) {
        ::kill(-child.pid, SIGKILL);
        reap_with_group(child.pid);
        throw;
      }
    }
  }

  Relay out_relay(const WorkerPlan& worker, Fd source) {
    LineCutter::Sink show;
    if (worker.rank == 0) show = [this](std::string_view lines) { terminal_.out(lines); };
    return Relay(std::move(source), log_of(worker, "stdout.log"), std::move(show));
  }

  Relay err_relay(const WorkerPlan& worker, Fd source) {
    LineCutter::Sink show = [this](std::string_view lines) { terminal_.err(lines); };
    if (worker.rank != 0) {
      show = [this, prefix = fmt::format("[rank{}] ", worker.rank)](std::string_view lines) {
        terminal_.err(with_prefix(lines, prefix));
      };
    }
    return Relay(std::move(source), log_of(worker, "stderr.log"), std::move(show));
  }

  static std::filesystem::path log_of(const WorkerPlan& worker, const char* name) {
    return worker.log_dir.empty() ? std::filesystem::path() : worker.log_dir / name;
  }

  [[nodiscard]] bool finished() const {
    return terminal_.waiting_fd() < 0 && std::all_of(workers_.begin(), workers_.end(), [](const Worker& w) {
             return w.outcome && !w.out.open() && !w.err.open();
           });
  }

  void wait() {
    polls_.clear();
    polls_.push_back({signals_.fd(), POLLIN, 0});
    if (terminal_.waiting_fd() >= 0) polls_.push_back({terminal_.waiting_fd(), POLLOUT, 0});
    for (const Worker& worker : workers_) {
      if (!worker.outcome) polls_.push_back({worker.pidfd.get(), POLLIN, 0});
      if (terminal_.full()) continue;
      if (worker.out.open()) polls_.push_back({worker.out.fd(), POLLIN, 0});
      if (worker.err.open()) polls_.push_back({worker.err.fd(), POLLIN, 0});
    }
    ::poll(polls_.data(), polls_.size(), milliseconds_to_next_deadline());
  }

  [[nodiscard]] int milliseconds_to_next_deadline() const {
    std::optional<Clock::time_point> next = kill_at_;
    const auto consider = [&next](Clock::time_point time) { next = next ? std::min(*next, time) : time; };
    if (follow_by_) consider(*follow_by_);
    for (const Worker& worker : workers_) {
      if (worker.outcome && (worker.out.open() || worker.err.open())) consider(worker.drain_until);
    }
    if (!next) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*next - Clock::now()).count();
    return static_cast<int>(std::clamp<std::int64_t>(left, 0, 3'600'000));
  }

  void serve_signals() {
    while (const std::optional<int> signal = signals_.next()) {
      if (*signal == SIGCHLD) {
        reap_adopted_children([this](pid_t pid) { return is_worker(pid) || is_not_ours(pid); });
      } else if (*signal == SIGUSR1) {
        send(SIGUSR1);
      } else {
        interrupt(*signal == SIGINT ? SIGINT : SIGTERM);
      }
    }
  }

  void interrupt(int signal) {
    if (interrupted_by_ != 0) {
      if (Clock::now() - interrupted_at_ < kOneRequest) return;
      log::warn("asked a second time: killing the workers");
      send(SIGKILL);
      terminal_.discard();
      return;
    }
    interrupted_by_ = signal;
    interrupted_at_ = Clock::now();
    log::info(fmt::format("SIG{}: passed on to the workers; once more kills them", ::sigabbrev_np(signal)));
    stop(signal);
  }

  /// Asks the group to end, with the grace period to do so.
  void stop(int signal) {
    if (!kill_at_) kill_at_ = Clock::now() + grace();
    follow_by_.reset();
    stopping_ = true;
    send(signal);
    send(SIGCONT);
  }

  void send(int signal) {
    for (const Worker& worker : workers_) {
      if (!worker.outcome) ::kill(-worker.pid, signal);
    }
  }

  void serve_streams() {
    if (terminal_.full()) return;
    for (Worker& worker : workers_) {
      if (worker.out.open()) worker.out.pump();
      if (worker.err.open()) worker.err.pump();
    }
    terminal_.pump();
  }

  /// Takes note of the workers that have ended. All that are found in one round count as having ended on
  /// their own or not by what was known before it.
  void collect() {
    bool failed = false;
    const bool was_stopping = stopping_;
    for (Worker& worker : workers_) {
      pollfd ended{worker.pidfd.get(), POLLIN, 0};
      if (worker.outcome || ::poll(&ended, 1, 0) != 1) continue;
      WorkerOutcome outcome;
      outcome.rank = worker.plan->rank;
      outcome.pid = worker.pid;
      outcome.status = reap_with_group(worker.pid);
      guardian_.forget(worker.pid);
      outcome.on_its_own = !was_stopping;
      outcome.order = ended_++;
      outcome.error_file = worker.plan->error_file;
      worker.outcome = std::move(outcome);
      worker.drain_until = Clock::now() + kDrainTime;
      log::debug(fmt::format("rank {}: {}", worker.plan->rank, text_of(worker.outcome->status)));
      if (worker.outcome->status == ExitStatus{to_int(ExitCode::kPreempted), 0}) {
        if (!stopping_ && !follow_by_) follow_by_ = Clock::now() + grace();
      } else if (!worker.outcome->status.success()) {
        failed = true;
      }
    }
    if (failed && !stopping_) stop(SIGTERM);
    // Whoever escaped from the groups may hold a pipe open.
    if (ended_ == static_cast<int>(workers_.size())) kill_strangers();
  }

  void serve_deadlines() {
    const Clock::time_point now = Clock::now();
    if (follow_by_ && now >= *follow_by_) stop(SIGTERM);
    if (kill_at_ && now >= *kill_at_) {
      if (std::any_of(workers_.begin(), workers_.end(), [](const Worker& w) { return !w.outcome; })) {
        log::warn(fmt::format("workers still run {} s after being asked to stop: killing them",
                              plan_.grace_period_s));
      }
      send(SIGKILL);
      kill_at_.reset();
    }
    for (Worker& worker : workers_) {
      if (!worker.outcome || terminal_.full() || now < worker.drain_until) continue;
      if (worker.out.open()) worker.out.close();
      if (worker.err.open()) worker.err.close();
    }
  }

  /// The guardian, and children from before: `job & exec accel launch ...` in a script gives us some.
  [[nodiscard]] bool is_not_ours(pid_t pid) const {
    return pid == guardian_.pid() || std::find(inherited_.begin(), inherited_.end(), pid) != inherited_.end();
  }

  void kill_strangers() {
    kill_adopted_children([this](pid_t pid) { return is_not_ours(pid); });
  }

  [[nodiscard]] bool is_worker(pid_t pid) const {
    return std::any_of(workers_.begin(), workers_.end(),
                       [pid](const Worker& w) { return !w.outcome && w.pid == pid; });
  }

  [[nodiscard]] Clock::duration grace() const {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(plan_.grace_period_s));
  }

  static WorkerOutcome outcome_with_lines(Worker& worker) {
    WorkerOutcome outcome = std::move(*worker.outcome);
    const bool silent = worker.err.tail().empty();
    const auto& tail = silent ? worker.out.tail() : worker.err.tail();
    outcome.last_lines.assign(tail.begin(), tail.end());
    outcome.log = log_of(*worker.plan, silent ? "stdout.log" : "stderr.log");
    return outcome;
  }

  const LaunchPlan& plan_;
  const std::vector<pid_t> inherited_ = child_processes();
  SignalQueue signals_;
  Guardian guardian_;
  Terminal terminal_;
  std::vector<Worker> workers_;
  std::vector<pollfd> polls_;
  std::optional<Clock::time_point> kill_at_;
  std::optional<Clock::time_point> follow_by_;  ///< One was preempted; by then the others should be.
  bool stopping_ = false;
  int interrupted_by_ = 0;
  Clock::time_point interrupted_at_;
  int ended_ = 0;
};

}  // namespace

GroupOutcome supervise(const LaunchPlan& plan, int out_fd, int err_fd) {
  return Supervisor(plan, out_fd, err_fd).run();
}

}  // namespace accel::core
