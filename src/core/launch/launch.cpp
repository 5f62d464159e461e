#include "core/launch/launch.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <ctime>
#include <optional>
#include <utility>

#include "base/error.hpp"
#include "base/files/leftover.hpp"
#include "base/host/host_name.hpp"
#include "base/log.hpp"
#include "core/launch/agent/report.hpp"
#include "core/launch/agent/scratch.hpp"
#include "core/launch/agent/supervisor.hpp"
#include "core/launch/beginning.hpp"
#include "core/launch/find_program.hpp"
#include "core/launch/run_directory.hpp"
#include "core/launch/world/address.hpp"
#include "core/launch/world/environment.hpp"
#include "core/launch/world/machine.hpp"

namespace accel::launch {
namespace {

std::string new_run_id() {
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  return fmt::format("accel-{:08x}-{:016x}", ::getpid(), now);
}

/// The port for rank 0's store: the configured one, or a free one if that is 0 or taken.
int choose_port(const config::LoadedConfig& loaded) {
  const int wanted = loaded.config.launch.main_process_port;
  if (wanted != 0 && port_is_free(wanted)) return wanted;
  const int port = free_port();
  const config::Setting* asked = loaded.settings.find("main_process_port");
  if (wanted == 0) {
    log::debug(fmt::format("using port {}", port));
  } else if (asked != nullptr) {
    log::warn(fmt::format("{}: port {} is in use; using {}", text_of(asked->origin), wanted, port));
  } else {
    log::info(fmt::format("port {} is in use; using {}", wanted, port));
  }
  return port;
}

/// Rank 0 hosts its store on this machine, and all ranks connect to it by this name.
void check_main_process_ip(const config::LoadedConfig& loaded) {
  try {
    blamed_on("main_process_ip", loaded.settings,
              [&] { check_own_address(loaded.config.launch.main_process_ip); });
  } catch (Error& error) {
    throw std::move(error).hint("on one machine leave it out: 127.0.0.1 is the default");
  }
}

/// The number of this attempt: a training that goes on keeps the logs of earlier ones.
int next_attempt(const LaunchRequest& request, const std::filesystem::path& logs) {
  int attempt = 0;
  if (!request.program.empty()) return attempt;
  while (std::filesystem::exists(logs / fmt::format("attempt_{}", attempt))) ++attempt;
  return attempt;
}

LaunchPlan make_plan(const LaunchRequest& request, const World& world, const Variables& shared,
                     const std::filesystem::path& scratch) {
  LaunchPlan plan;
  plan.catches_stop_signals = request.program.empty();
  plan.run_id = world.run_id;
  plan.grace_period_s = request.loaded.config.launch.grace_period_s;
  plan.scratch = scratch;
  const std::filesystem::path logs = log_root(request.loaded.config);
  const int attempt = next_attempt(request, logs);
  for (int local_rank = 0; local_rank < world.local_ranks; ++local_rank) {
    WorkerPlan worker;
    worker.rank = world.machine_rank * world.local_ranks + local_rank;
    worker.error_file = scratch / fmt::format("rank_{}_error.json", worker.rank);
    if (!logs.empty()) {
      worker.log_dir = logs / fmt::format("attempt_{}", attempt) / fmt::format("rank_{}", worker.rank);
      make_log_directory(worker.log_dir, request.loaded);
    }
    worker.variables = torchrun_variables(world, local_rank, worker.error_file);
    worker.variables.insert(shared.begin(), shared.end());
    plan.workers.push_back(std::move(worker));
  }
  return plan;
}

/// The failure of the run; absent if it succeeded or was preempted.
std::optional<Error> failure_of(const GroupOutcome& group) {
  switch (exit_code_of_group(group)) {
    case ExitCode::kSuccess:
    case ExitCode::kPreempted:
      return std::nullopt;
    case ExitCode::kInterrupted:
      return Error(ErrorKind::kInterrupted, "interrupted by SIGINT");
    case ExitCode::kTerminated:
      return Error(ErrorKind::kTerminated, "terminated by SIGTERM");
    default:
      break;
  }
  const WorkerOutcome* cause = root_cause(group);
  // Without a worker that failed by itself, the group was stopped because some ranks were preempted and
  // others did not follow.
  if (cause == nullptr)
    return Error(ErrorKind::kWorker, "some ranks stopped for preemption and others did not");
  return Error(ErrorKind::kWorker, failure_report(group, *cause, host_name()));
}

/// Ends this process with `code` after a second. After an interrupt it must not wait for a reader of its last
/// message.
void leave_soon(ExitCode code) {
  struct sigaction action {};
  action.sa_flags = SA_SIGINFO;
  action.sa_sigaction = [](int, siginfo_t* info, void*) { ::_exit(info->si_value.sival_int); };
  ::sigaction(SIGALRM, &action, nullptr);
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGALRM;
  event.sigev_value.sival_int = to_int(code);
  timer_t timer{};
  const itimerspec in_a_second{{}, {1, 0}};
  if (::timer_create(CLOCK_MONOTONIC, &event, &timer) == 0) ::timer_settime(timer, 0, &in_a_second, nullptr);
}

}  // namespace

ExitCode launch(LaunchRequest request, const Environment& environment) {
  config::LoadedConfig& loaded = request.loaded;
  config::LaunchConfig& config = loaded.config.launch;
  const bool trains = request.program.empty();
  // A reader of the output that goes away must not end the launcher, not even while it writes its last
  // message.
  ::signal(SIGPIPE, SIG_IGN);

  LaunchPlan plan;
  std::vector<std::string> command = request.program;
  if (trains) {
    const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe");
    command = {blamed_on("launch.worker", loaded.settings,
                         [&] { return find_worker(self, config.worker, environment).string(); })};
  } else {
    command[0] = find_program(command[0], environment).string();
  }
  check_main_process_ip(loaded);
  config.main_process_port = choose_port(loaded);

  std::optional<LeftoverLock> lock;
  if (trains) {
    lock = claim_output(loaded);
    const Beginning beginning = find_beginning(loaded);
    if (beginning.is_finished) return ExitCode::kSuccess;
    loaded.config.training->checkpoint.resume_from = beginning.checkpoint;
  }
  Variables shared = machine_variables(loaded, physical_cores(), environment);
  if (trains) {
    shared["ACCEL_CONFIG_FILE"] = write_resolved(loaded.config).string();
    shared.merge(worker_variables(environment));
  } else {
    shared.merge(accelerate_variables(loaded));
    // Python buffers what it prints into a pipe, and loses it when it is killed.
    if (!environment("PYTHONUNBUFFERED")) shared.emplace("PYTHONUNBUFFERED", "1");
  }

  const std::string temporary = environment("TMPDIR").value_or("");
  // The path is absolute, so that a program that changes its directory finds its error file.
  std::optional<Scratch> scratch(std::in_place, temporary.empty() ? std::filesystem::path("/tmp")
                                                                  : std::filesystem::absolute(temporary));
  const World world{config.num_processes, config.num_processes,   config.machine_rank,
                    config.num_machines,  config.main_process_ip, config.main_process_port,
                    new_run_id()};
  plan = make_plan(request, world, shared, scratch->path());
  plan.command = std::move(command);
  const GroupOutcome group = supervise(plan, STDOUT_FILENO, STDERR_FILENO);
  const ExitCode code = exit_code_of_group(group);
  std::optional<Error> failure = failure_of(group);
  scratch.reset();
  if (group.interrupted_by != 0) leave_soon(code);
  if (failure) throw *std::move(failure);
  if (code == ExitCode::kPreempted) log::info("stopped for preemption, after saving");
  return code;
}

}  // namespace accel::launch
