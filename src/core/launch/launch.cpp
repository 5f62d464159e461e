#include "core/launch/launch.hpp"

#include <fmt/format.h>
#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>
#include <variant>

#include "base/error.hpp"
#include "base/interrupt.hpp"
#include "base/log.hpp"
#include "base/seconds.hpp"
#include "core/launch/agent/events.hpp"
#include "core/launch/attempt.hpp"
#include "core/launch/closing.hpp"
#include "core/launch/find_program.hpp"
#include "core/launch/place.hpp"
#include "core/launch/run_story.hpp"

namespace accel::launch {
namespace {

/// The command of every rank.
std::vector<std::string> command_of(const LaunchRequest& request, const Environment& environment) {
  const config::LoadedConfig& loaded = request.loaded;
  std::vector<std::string> command = request.program;
  if (command.empty()) {
    const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe");
    command = {config::blamed_on("launch.worker", loaded.settings, [&] {
      return find_worker(self, loaded.config.launch.worker, environment).string();
    })};
  } else {
    command[0] = find_program(command[0], environment).string();
  }
  return command;
}

/// The failure of the run; absent if it succeeded or was preempted.
std::optional<Error> failure_of(const AttemptEnd& end) {
  if (end.code == ExitCode::kSuccess || end.code == ExitCode::kPreempted) return std::nullopt;
  const int signal = to_int(end.code) - kSignalBase;
  return signal > 0 ? error_of_signal(signal) : Error(ErrorKind::kWorker, end.report);
}

/// Writes the events of a run, if they are asked for.
class Events {
 public:
  Events(const LaunchRequest& request, const std::vector<std::string>& command)
      : writes_(request.writes_events), signals_(*request.signals), command_(command) {}

  /// All machines are there. A run on one machine has no such event.
  void rendezvous(const Place& place, std::chrono::duration<double> waited) const {
    if (place.cluster == nullptr) return;
    write("rendezvous", {{"num_machines", place.world.num_machines},
                         {"machine_rank", place.world.machine_rank},
                         {"world_size", place.world.num_processes},
                         {"seconds", waited.count()}});
  }
  void restarted(const Place& place) const {
    write("restarted", {{"attempt", place.attempt},
                        {"restarts", place.world.restarts},
                        {"max_restarts", place.world.max_restarts}});
  }
  void started(const Place& place) const {
    const World& world = place.world;
    write("started", {{"run_id", world.run_id},
                      {"attempt", place.attempt},
                      {"restarts", world.restarts},
                      {"command", command_},
                      {"world_size", world.num_processes},
                      {"num_machines", world.num_machines},
                      {"machine_rank", world.machine_rank},
                      {"first_rank", world.first_rank},
                      {"local_ranks", world.local_ranks}});
  }
  void failed(const Place& place, const AttemptEnd& end) const {
    write("failed", {{"attempt", place.attempt}, {"report", end.report}});
  }
  void finished(ExitCode code) const {
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - began_;
    write("finished", {{"exit_code", to_int(code)}, {"seconds", time.count()}});
  }

 private:
  /// A reader that goes away is no error, and one that does not read is not waited for after a signal.
  void write(const char* type, const nlohmann::ordered_json& fields) const {
    if (!writes_) return;
    const std::string line = event_line(type, fields);
    for (std::string_view rest = line; !rest.empty();) {
      constexpr int kPatienceMs = 1000;
      pollfd ready{STDOUT_FILENO, POLLOUT, 0};
      while (::poll(&ready, 1, kPatienceMs) == 0) {
        if (signals_.is_asked_to_end()) return;
      }
      // So much does not block where the descriptor polls writable.
      const ssize_t written =
          ::write(STDOUT_FILENO, rest.data(), std::min<std::size_t>(rest.size(), PIPE_BUF));
      if (written < 0 && errno != EINTR && errno != EAGAIN) return;
      if (written > 0) rest.remove_prefix(static_cast<std::size_t>(written));
    }
  }

  bool writes_;
  SignalSource& signals_;
  const std::vector<std::string>& command_;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

/// What machine 0 says last of a training; empty for a program.
std::string closing(const LaunchRequest& request, const Place& place, const AttemptEnd& end) {
  if (!request.program.empty() || place.world.machine_rank > 0) return "";
  return closing_of(*request.loaded.config.training, end.code, place.first_step, end.done);
}

/// The failure of a run that is not to be restarted. If a rank has found its checkpoint corrupt, the report
/// comes first, because reading a checkpoint again may take long.
Error last_failure(const LaunchRequest& request, const Place& place, const AttemptEnd& end) {
  if (!may_be_damaged(request, place, end))
    return Error(ErrorKind::kWorker, end.report).hint(closing(request, place, end));
  log::error(end.report);
  request.signals->interrupt();
  Members nobody_waits;
  const Damage damage = check_damage(request, nobody_waits);
  Error failure(ErrorKind::kWorker, "the run has failed");
  return damage.text.empty() ? failure : std::move(failure).hint(damage.text);
}

/// Throws if another run has taken over a directory of this one, which was ended for that reason. After an
/// interrupt it does not ask a file server that may not answer.
void require_locks(const Place& place, bool is_interrupted) {
  require_locks_as_known(place);
  if (is_interrupted) return;
  for (const ckpt::RunLock* lock : {place.lock.get(), place.log_lock.get()}) {
    if (lock != nullptr) lock->require();
  }
}

/// Begins an attempt and returns how it ended. A signal that comes before the ranks start is thrown.
AttemptEnd attempt(const LaunchRequest& request, const Environment& environment, const Place& place,
                   const std::vector<std::string>& command, const Events& events,
                   const std::filesystem::path& run) {
  try {
    check_interrupted();
    events.started(place);
    if (!run.empty()) remove_run_end(run);
    AttemptEnd end = run_attempt(request, place, command, environment);
    require_locks(place, end.was_interrupted);
    return end;
  } catch (const Error& error) {
    if (!is_by_signal(error.kind())) throw;
    request.signals->close();
    if (place.cluster != nullptr) place.cluster->leave();
    require_locks_as_known(place);
    if (!run.empty()) write_run_end(run, {seconds_since_1970(), exit_code_of(error.kind()), "", 0});
    throw;
  }
}

ExitCode run_attempts(LaunchRequest& request, const Environment& environment,
                      const std::vector<std::string>& command, const Events& events) {
  Restarts restarts(request.loaded.config.launch.max_restarts);
  auto waits_since = std::chrono::steady_clock::now();
  Place place = begin(request, environment);
  while (!place.is_finished) {
    events.rendezvous(place, std::chrono::steady_clock::now() - waits_since);
    const std::filesystem::path run = place.lock ? request.loaded.config.training->output_dir : "";
    AttemptEnd end = attempt(request, environment, place, command, events, run);
    // An evaluation may be one of several.
    const bool is_part = request.program.empty() && request.loaded.config.training->only_evaluates;
    if (end.was_interrupted && !is_part) request.signals->leave_soon(end.code);
    // Its ranks may have finished before the signal reached them.
    if (end.asked_by != 0 && is_part && end.code == ExitCode::kSuccess) throw error_of_signal(end.asked_by);
    if (!run.empty()) write_run_end(run, {seconds_since_1970(), end.code, end.report, end.step});
    for (const std::filesystem::path& log : end.incomplete_logs)
      log::warn(fmt::format("'{}' is incomplete: its file system has not taken all of it", log.string()));
    if (end.code == ExitCode::kWorkerFailed) events.failed(place, end);
    if (end.code != ExitCode::kWorkerFailed || end.was_interrupted) {
      if (std::optional<Error> failure = failure_of(end))
        throw std::move(*failure).hint(closing(request, place, end));
      std::string text = closing(request, place, end);
      if (text.empty() && end.code == ExitCode::kPreempted) text = "stopped for preemption, after saving";
      // To write the text may be the last that this process does.
      place.lock.reset();
      place.log_lock.reset();
      if (!text.empty()) log::info(text);
      return end.code;
    }
    if (restarts.most() == 0) throw last_failure(request, place, end);
    request.signals->interrupt();
    waits_since = std::chrono::steady_clock::now();
    log::error(end.report);
    const std::string last_words = closing(request, place, end);
    auto next = begin_again(request, std::move(place), end, restarts);
    if (const auto* why_not = std::get_if<std::string>(&next)) {
      throw Error(ErrorKind::kWorker,
                  why_not->empty() ? "the run has failed"
                                   : fmt::format("the run has failed, and is not restarted: {}", *why_not))
          .hint(last_words);
    }
    place = std::get<Place>(std::move(next));
    events.restarted(place);
  }
  return ExitCode::kSuccess;
}

}  // namespace

ExitCode launch(LaunchRequest request, const Environment& environment) {
  // A reader of the output that goes away must not end the launcher, not even while it writes its last
  // message.
  ::signal(SIGPIPE, SIG_IGN);
  request.signals->interrupt();
  const std::vector<std::string> command = command_of(request, environment);
  const Events events(request, command);
  const auto finish = [&](ExitCode code) {
    request.signals->close();
    events.finished(code);
  };
  try {
    const ExitCode code = run_attempts(request, environment, command, events);
    finish(code);
    return code;
  } catch (const Error& error) {
    if (is_by_signal(error.kind())) request.signals->leave_soon(exit_code_of(error.kind()), true);
    finish(exit_code_of(error.kind()));
    throw;
  }
}

}  // namespace accel::launch
