#include "core/launch/agent/supervisor.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <memory>
#include <optional>

#include "base/exit_code.hpp"
#include "base/files/flight_record.hpp"
#include "base/host/kernel_log.hpp"
#include "base/log.hpp"
#include "base/signal_name.hpp"
#include "base/stop_request.hpp"
#include "core/launch/agent/deadlines.hpp"
#include "core/launch/agent/events.hpp"
#include "core/launch/agent/guardian.hpp"
#include "core/launch/agent/hang_watch.hpp"
#include "core/launch/agent/job_control.hpp"
#include "core/launch/agent/live_status.hpp"
#include "core/launch/agent/signals.hpp"
#include "core/launch/agent/streams.hpp"
#include "core/launch/agent/worker.hpp"
#include "core/launch/output/log_queue.hpp"
#include "core/launch/output/relay.hpp"
#include "core/launch/output/terminal.hpp"

namespace accel::launch {
namespace {

using Clock = std::chrono::steady_clock;

/// How long to read from a pipe whose worker has ended, because another process may hold its other end.
constexpr auto kDrainTime = std::chrono::seconds(1);

/// How often to look at other machines, or for signals, while nothing arrives.
constexpr int kPeerMs = 200;

class Supervisor {
 public:
  Supervisor(const LaunchPlan& plan, int out_fd, int err_fd, SignalSource& source, Peers* peers)
      : plan_(plan),
        peers_(peers),
        signals_(source),
        guardian_(plan.run_id, plan.scratch),
        hang_watch_(plan, peers),
        checkpoint_watch_(plan),
        terminal_(out_fd, err_fd),
        live_status_(plan, terminal_) {}
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;
  /// Workers are left here only after an error.
  ~Supervisor() {
    try {
      for (const Worker& worker : workers_)
        if (!worker.outcome && !kill_with_group(worker.pid)) leave_behind(worker.pid);
      kill_orphans();
      live_status_.end();
      terminal_.drain(kDrainTime);
    } catch (const std::exception&) {
      // There is no memory for the list of processes. The kernel kills the workers when this process ends.
    }
  }

  GroupOutcome run() {
    // A reader that does not read must not block the launcher.
    const log::Redirect redirect([this](std::string_view line) { terminal_.err(line); });
    start();
    while (!finished()) {
      wait();
      // Collect them before the signals are read: then the first SIGCHLD tells which of them ended first.
      const std::vector<Worker*> ended = ended_workers(workers_);
      const bool was_stopping = stopping_;
      serve_signals();
      terminal_.pump();
      serve_streams();
      collect(ended, was_stopping);
      serve_peers();
      serve_hang();
      terminal_.out(checkpoint_watch_.serve());
      live_status_.serve();
      serve_deadlines();
    }
    live_status_.end();
    kill_orphans();
    terminal_.out(checkpoint_watch_.serve(/*now=*/true));
    terminal_.drain(kDrainTime);
    GroupOutcome result = outcome();
    if (peers_ != nullptr) await_peers(result);
    drain_logs(result);
    for (const std::string& warning : logs_.warnings()) log::warn(warning);
    result.interrupted_by = outcome_.interrupted_by;
    result.was_asked_to_save = outcome_.was_asked_to_save;
    terminal_.drain(kDrainTime);
    if (result.interrupted_by != 0) terminal_.close();
    signals_.close();
    return result;
  }

 private:
  GroupOutcome outcome() {
    GroupOutcome result = outcome_;
    result.world_size = plan_.world_size;
    result.catches_stop_signals = plan_.catches_stop_signals;
    result.oom_kills = oom_kills_since(oom_kills_before_);
    for (Worker& worker : workers_) result.workers.push_back(outcome_with_lines(worker));
    const bool has_succeeded = std::all_of(result.workers.begin(), result.workers.end(),
                                           [](const WorkerOutcome& w) { return w.status.success(); });
    if (!has_succeeded) result.gpu_errors = gpu_log_.news();
    return result;
  }

  /// Waits until the run is over on all machines. A second interrupt ends the wait.
  void await_peers(const GroupOutcome& result) {
    peers_->on_end(result);
    bool reported_hang = false;
    while (!peers_->is_over() && !ended_by_user_) {
      polls_.clear();
      signals_.add_polls(polls_);
      peers_->add_polls(polls_);
      ::poll(polls_.data(), polls_.size(), kPeerMs);
      serve_signals();
      const PeerRequest request = peers_->serve();
      if (outcome_.interrupted_by == 0 && request.signal != 0) {
        outcome_.interrupted_by = request.signal;
        interrupted_at_ = Clock::now();
      }
      // Each other machine looks at its own ranks.
      if (!stopping_ && !reported_hang && hang_watch_.hangs(lives_of(workers_))) {
        reported_hang = true;
        peers_->on_hang();
      }
      terminal_.pump();
    }
  }

  /// Waits for the file system of the logs. A second interrupt ends the wait; the first one asks for nothing.
  void drain_logs(GroupOutcome& result) {
    const int before = outcome_.interrupted_by;
    const Clock::time_point begun = Clock::now();
    bool has_said = false;
    while (!logs_.drain(std::chrono::milliseconds(kPeerMs)) && !ended_by_user_) {
      if (!std::exchange(has_said, has_said || Clock::now() - begun >= std::chrono::seconds(5)) && has_said)
        log::info("waiting for the file system of the logs; a second signal gives up what it has not taken");
      serve_signals();
      terminal_.pump();
    }
    if (ended_by_user_) result.incomplete_logs = logs_.abandon();
    const int after = std::exchange(outcome_.interrupted_by, before);
    if (after != before) result.interrupted_late = after;
  }

  void serve_peers() {
    if (peers_ == nullptr) return;
    const PeerRequest request = peers_->serve();
    if (request.signal != 0 && outcome_.interrupted_by == 0) {
      log::info(
          fmt::format("SIG{} on another machine: passed on to the workers", signal_name(request.signal)));
      begin_interrupt(request.signal);
    }
    if (request.looks && !ended_now_) hang_watch_.look(lives_of(workers_));
    // What is being looked at ends when it has been seen.
    if (request.ends_now && !ended_now_ && !hang_watch_.is_looking()) end_now();
  }

  void serve_hang() {
    if (!stopping_ && hang_watch_.hangs(lives_of(workers_))) {
      log::warn("no progress: looking where the ranks stand");
      outcome_.hung_at_ns = nanoseconds_since_1970();
      if (peers_ != nullptr) peers_->on_hang();
      hang_watch_.look(lives_of(workers_));
    }
    if (auto hang = hang_watch_.seen()) {
      if (outcome_.hung_at_ns == 0) outcome_.hung_at_ns = nanoseconds_since_1970();
      outcome_.hang = std::move(hang);
      // Meanwhile a rank may have failed because those of another machine were ended.
      if (ended_now_) return;
      if (peers_ != nullptr) peers_->on_failure();
      end_now();
    }
  }

  void start() {
    workers_.reserve(plan_.workers.size());
    for (const WorkerPlan& worker : plan_.workers) {
      SpawnRequest request;
      request.command = plan_.command;
      request.environment = merged_environment(worker.variables);
      request.cpus = worker.cpus;
      request.announce_fd = guardian_.announce_fd();
      request.blocks_stop_signals = plan_.catches_stop_signals;
      request.stdin_fd = job_control_.stdin_of(worker);
      const bool has_prompts = ::isatty(request.stdin_fd) == 1 && !worker.has_prefix;
      Child child = spawn(request);
      // After an error here no entry of workers_ would know the worker.
      try {
        workers_.push_back(Worker{&worker,
                                  child.pid,
                                  std::move(child.pidfd),
                                  out_relay(worker, std::move(child.out), terminal_, logs_, plan_.moves_out),
                                  err_relay(worker, std::move(child.err), terminal_, logs_),
                                  std::nullopt,
                                  {}});
      } catch (...) {
        if (!kill_with_group(child.pid)) leave_behind(child.pid);
        throw;
      }
      hang_watch_.add(workers_.back().pid);
      if (!has_prompts) continue;
      workers_.back().out.show_prompts();
      workers_.back().err.show_prompts();
    }
  }

  [[nodiscard]] bool finished() const {
    return terminal_.waiting_fd() < 0 && !hang_watch_.is_looking() && are_done(workers_);
  }

  void wait() {
    polls_.clear();
    signals_.add_polls(polls_);
    if (terminal_.waiting_fd() >= 0 && !terminal_.stalled())
      polls_.push_back({terminal_.waiting_fd(), POLLOUT, 0});
    for (const Worker& worker : workers_) {
      if (!worker.outcome) polls_.push_back({worker.pidfd.get(), POLLIN, 0});
      if (!reads()) continue;
      if (worker.out.open()) polls_.push_back({worker.out.fd(), POLLIN, 0});
      if (worker.err.open()) polls_.push_back({worker.err.fd(), POLLIN, 0});
    }
    if (peers_ != nullptr) peers_->add_polls(polls_);
    ::poll(polls_.data(), polls_.size(), milliseconds_to_next_deadline());
  }

  [[nodiscard]] int milliseconds_to_next_deadline() const {
    std::optional<Clock::time_point> next = deadlines_.next();
    const bool drains = reads();
    const auto consider = [&next](Clock::time_point time) { next = next ? std::min(*next, time) : time; };
    if (peers_ != nullptr) consider(peers_->deadline());
    if (const auto look = checkpoint_watch_.deadline()) consider(*look);
    if (const auto look = live_status_.deadline()) consider(*look);
    if (const auto look = hang_watch_.deadline(); look && !(stopping_ && !hang_watch_.is_looking()))
      consider(*look);
    if (terminal_.stalled() || logs_.full()) consider(Clock::now() + Terminal::kStalledTime);
    for (const Worker& worker : workers_) {
      if (const auto due = output_due(worker); due && drains) consider(*due);
    }
    if (!next) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*next - Clock::now()).count();
    return static_cast<int>(std::clamp<std::int64_t>(left, 0, 3'600'000));
  }

  void serve_signals() {
    while (const std::optional<Arrival> arrival = signals_.next()) {
      if (arrival->signal == SIGCHLD) {
        if (runs_as(workers_, arrival->pid)) deaths_.push_back(arrival->pid);
        reap_adopted_children([this](pid_t pid) { return runs_as(workers_, pid) || is_not_ours(pid); });
      } else if (arrival->signal == SIGUSR1 || arrival->signal == SIGUSR2) {
        log::info(fmt::format("SIG{}: passed on to the workers", signal_name(arrival->signal)));
        outcome_.was_asked_to_save = true;
        send(arrival->signal);
      } else if (arrival->signal == SIGTSTP) {
        suspend();
      } else {
        interrupt(arrival->signal);
      }
    }
  }

  /// Stops the workers and this process until it is continued. The time does not count.
  void suspend() {
    live_status_.hide();
    terminal_.pump();
    send(SIGSTOP);
    for (const Worker& worker : workers_) wait_until_stopped(worker.pid);
    deadlines_.put_off(job_control_.stop(workers_, terminal_, signals_));
    send(SIGCONT);
    hang_watch_.begin_again();
  }

  void interrupt(int signal) {
    // A scheduler signals the launchers of all machines, so another machine may have passed it on before.
    const bool is_first = !std::exchange(interrupted_here_, true);
    if (outcome_.interrupted_by != 0 && is_first) {
      interrupted_at_ = Clock::now();
      return;
    }
    if (outcome_.interrupted_by != 0) {
      if (Clock::now() - interrupted_at_ < SignalSource::kOneRequest) return;
      log::warn("a second signal: killing the workers");
      ended_by_user_ = true;
      terminal_.pump();
      terminal_.close();
      kill_group();
      return;
    }
    log::info(text_of_request(signal, plan_.catches_stop_signals, plan_.saves_when_asked));
    if (peers_ != nullptr) peers_->on_signal(signal);
    begin_interrupt(signal);
  }

  void begin_interrupt(int signal) {
    outcome_.interrupted_by = signal;
    interrupted_at_ = Clock::now();
    deadlines_.close = interrupted_at_ + grace();
    stop(passed_on(signal, plan_.catches_stop_signals));
  }

  /// Asks the group to end within the grace period.
  void stop(int signal) {
    if (!deadlines_.kill) deadlines_.kill = Clock::now() + grace();
    deadlines_.follow.reset();
    if (!stopping_) outcome_.stopped_at_ns = nanoseconds_since_1970();
    stopping_ = true;
    send(signal);
    send(SIGCONT);
  }

  /// Whether a worker failed by itself although the group was asked to stop: our worker then saves a
  /// checkpoint, and the other ranks wait for it.
  [[nodiscard]] bool fails_while_saving(const ExitStatus& status) const {
    if (!plan_.catches_stop_signals || ended_now_ || status.success() || !status.known) return false;
    return status != ExitStatus{to_int(ExitCode::kPreempted), 0} &&
           status.signal != passed_on(outcome_.interrupted_by, plan_.catches_stop_signals);
  }

  /// Ends the group, in which a rank has failed. A worker must not save: the ranks would wait for that one.
  void end_now() {
    ended_now_ = true;
    for (const Worker& worker : workers_) {
      if (plan_.catches_stop_signals && !worker.outcome)
        ::sigqueue(worker.pid, SIGTERM, sigval{.sival_int = kEndNow});
    }
    stop(SIGTERM);
  }

  void kill_group() {
    ended_now_ = true;
    send(SIGKILL);
    deadlines_.kill.reset();
    if (!deadlines_.abandon) deadlines_.abandon = Clock::now() + kKillTime;
  }

  void send(int signal) {
    for (const Worker& worker : workers_) {
      if (!worker.outcome) ::kill(-worker.pid, signal);
    }
  }

  /// Whether what the workers write is read. While it is not, they may wait for that, and do not hang.
  [[nodiscard]] bool reads() const { return !terminal_.full() && !logs_.full(); }

  void serve_streams() {
    for (const std::string& warning : logs_.warnings()) log::warn(warning);
    if (!reads()) return hang_watch_.begin_again();
    for (Worker& worker : workers_) {
      if (worker.out.open()) worker.out.pump();
      if (worker.err.open()) worker.err.pump();
      worker.out.serve_prompt();
      worker.err.serve_prompt();
    }
    terminal_.pump();
  }

  /// Collects the workers that have ended. All of one round count as ended on their own, or none.
  void collect(std::vector<Worker*> ended, bool was_stopping) {
    bool failed = false;
    std::stable_sort(ended.begin(), ended.end(), [this](const Worker* a, const Worker* b) {
      return std::find(deaths_.begin(), deaths_.end(), a->pid) <
             std::find(deaths_.begin(), deaths_.end(), b->pid);
    });
    for (Worker* const ptr : ended) {
      Worker& worker = *ptr;
      const ExitStatus status = reap_with_group(worker.pid);
      conclude(worker, status, !was_stopping || fails_while_saving(status));
      if (!worker.outcome->status.known) inherited_.push_back(worker.pid);
      if (worker.outcome->status == ExitStatus{to_int(ExitCode::kPreempted), 0}) {
        if (!stopping_ && !deadlines_.follow) deadlines_.follow = Clock::now() + grace();
      } else if (!worker.outcome->status.success()) {
        failed |= worker.outcome->on_its_own;
      }
    }
    if (failed && peers_ != nullptr) peers_->on_failure();
    if (failed && !ended_now_) end_now();
    // A process that left its group may hold a pipe open.
    if (ended_ == static_cast<int>(workers_.size())) kill_orphans();
  }

  void conclude(Worker& worker, ExitStatus status, bool on_its_own) {
    WorkerOutcome outcome;
    outcome.rank = worker.plan->rank;
    outcome.pid = worker.pid;
    outcome.status = status;
    outcome.ended_at_ns = nanoseconds_since_1970();
    std::erase(deaths_, worker.pid);
    guardian_.unwatch(worker.pid);
    outcome.on_its_own = on_its_own;
    outcome.order = ended_++;
    outcome.error_file = worker.plan->error_file;
    worker.outcome = std::move(outcome);
    worker.drain_until = Clock::now() + kDrainTime;
    log::debug(fmt::format("rank {}: {}", worker.plan->rank, text_of(status)));
  }

  /// A process that SIGKILL does not end hangs in the kernel. The launcher does not wait for it.
  void leave_behind(pid_t pid) {
    log::warn(fmt::format("process {} cannot be killed and is left behind", text_of_process(pid)));
    inherited_.push_back(pid);
  }

  void serve_deadlines() {
    const Clock::time_point now = Clock::now();
    if (deadlines_.follow && now >= *deadlines_.follow) {
      if (peers_ != nullptr) peers_->on_failure();
      end_now();
    }
    if (deadlines_.kill && now >= *deadlines_.kill) {
      if (std::any_of(workers_.begin(), workers_.end(), [](const Worker& w) { return !w.outcome; })) {
        log::warn(fmt::format("workers still run {} s after being asked to stop: killing them",
                              plan_.grace_period_s));
      }
      kill_group();
    }
    if (deadlines_.abandon && now >= *deadlines_.abandon) {
      for (Worker& worker : workers_) {
        if (worker.outcome) continue;
        leave_behind(worker.pid);
        conclude(worker, {.known = false}, false);
      }
      deadlines_.abandon.reset();
    }
    // After an interrupt the launcher does not wait for a reader that does not read.
    if (deadlines_.close && now >= *deadlines_.close) {
      terminal_.pump();
      if (terminal_.waiting_fd() >= 0) terminal_.close();
      deadlines_.close = now + kDrainTime;
    }
    for (Worker& worker : workers_) {
      if (!worker.outcome || !reads() || now < worker.drain_until) continue;
      if (worker.out.open()) worker.out.close();
      if (worker.err.open()) worker.err.close();
    }
  }

  /// The guardian, and children from before exec: a script may run `job & exec accel launch ...`.
  [[nodiscard]] bool is_not_ours(pid_t pid) const {
    return pid == guardian_.pid() || std::find(inherited_.begin(), inherited_.end(), pid) != inherited_.end();
  }

  void kill_orphans() {
    for (const pid_t pid : kill_adopted_children([this](pid_t pid) { return is_not_ours(pid); }))
      leave_behind(pid);
  }

  [[nodiscard]] Clock::duration grace() const {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(plan_.grace_period_s));
  }

  const LaunchPlan& plan_;
  Peers* peers_;
  std::vector<pid_t> inherited_ = child_processes();  ///< Children from before exec, and those left behind.
  SignalQueue signals_;
  OomKills oom_kills_before_ = oom_kills();
  GpuErrorLog gpu_log_;
  Guardian guardian_;
  HangWatch hang_watch_;
  CheckpointWatch checkpoint_watch_;
  JobControl job_control_;
  Terminal terminal_;
  LiveStatus live_status_;
  LogQueue logs_;
  std::vector<Worker> workers_;
  std::vector<pollfd> polls_;
  Deadlines deadlines_;
  std::vector<pid_t> deaths_;  ///< Workers that have ended and are not collected yet, in order.
  bool stopping_ = false;
  bool ended_by_user_ = false;     ///< There was a second signal.
  bool ended_now_ = false;         ///< The workers must end, and not save before.
  GroupOutcome outcome_;           ///< What is known of it already; outcome() adds the rest.
  bool interrupted_here_ = false;  ///< This launcher got a signal, and not only another machine's.
  Clock::time_point interrupted_at_;
  int ended_ = 0;
};

}  // namespace

GroupOutcome supervise(const LaunchPlan& plan, int out_fd, int err_fd, SignalSource& signals, Peers* peers) {
  GroupOutcome result = Supervisor(plan, out_fd, err_fd, signals, peers).run();
  while (const std::optional<int> late = signals.take()) {
    const bool saves = *late == SIGUSR1 || *late == SIGUSR2;
    result.was_asked_to_save |= saves;
    if (!saves && result.interrupted_late == 0) result.interrupted_late = *late;
  }
  return result;
}

}  // namespace accel::launch
