#include "core/launch/launch.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <ctime>
#include <memory>
#include <optional>
#include <utility>

#include "base/error.hpp"
#include "base/files/leftover.hpp"
#include "base/host/host_name.hpp"
#include "base/interrupt.hpp"
#include "base/log.hpp"
#include "core/launch/agent/report.hpp"
#include "core/launch/agent/scratch.hpp"
#include "core/launch/agent/supervisor.hpp"
#include "core/launch/beginning.hpp"
#include "core/launch/cluster/cluster.hpp"
#include "core/launch/cluster/party.hpp"
#include "core/launch/cluster/rendezvous.hpp"
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
int next_attempt(const LaunchRequest& request) {
  const std::filesystem::path logs = log_root(request.loaded.config);
  int attempt = 0;
  if (!request.program.empty()) return attempt;
  while (std::filesystem::exists(logs / fmt::format("attempt_{}", attempt))) ++attempt;
  return attempt;
}

/// Where this machine is in its run, and what the run begins with.
struct Place {
  World world;
  int attempt = 0;
  bool is_finished = false;          ///< There is nothing to do.
  std::optional<LeftoverLock> lock;  ///< The claim on the output_dir, which machine 0 has.
  std::unique_ptr<Cluster> cluster;  ///< Absent on one machine.
};

/// Claims the output_dir, and finds the checkpoint to go on from.
void begin_training(LaunchRequest& request, Place& place) {
  if (!request.program.empty()) return;
  place.lock = claim_output(request.loaded);
  const Beginning beginning = find_beginning(request.loaded);
  place.is_finished = beginning.is_finished;
  request.loaded.config.training->checkpoint.resume_from = beginning.checkpoint;
}

Place begin_alone(LaunchRequest& request) {
  config::LaunchConfig& config = request.loaded.config.launch;
  check_main_process_ip(request.loaded);
  config.main_process_port = choose_port(request.loaded);
  Place place;
  begin_training(request, place);
  place.attempt = next_attempt(request);
  place.world = {config.num_processes,   config.num_processes,     0,           0, 1,
                 config.main_process_ip, config.main_process_port, new_run_id()};
  return place;
}

/// Begins a run on several machines, together with their launchers.
Place begin_together(LaunchRequest& request) {
  config::LaunchConfig& config = request.loaded.config.launch;
  const Party party = party_of(request.loaded.config, request.program, request.version, host_name());
  Place place;
  place.world = {config.num_processes, config.local_processes, 0, config.machine_rank,
                 config.num_machines,  config.main_process_ip, 0, ""};
  if (config.machine_rank == 0) {
    check_main_process_ip(request.loaded);
    Guests guests = await_guests(party);
    place.world.run_id = new_run_id();
    try {
      begin_training(request, place);
      if (request.program.empty()) write_run_id(request.loaded.config, place.world.run_id);
    } catch (const Error& error) {
      refuse(guests, error.kind(), error.message());
      throw;
    }
    place.attempt = next_attempt(request);
    place.world.master_port = free_port();
    const config::TrainingConfig* training =
        request.program.empty() ? &*request.loaded.config.training : nullptr;
    welcome(guests, party,
            {0, place.world.master_port, place.attempt, place.world.run_id,
             training != nullptr ? training->checkpoint.resume_from.string() : "", place.is_finished});
    place.cluster = lead(std::move(guests), host_name());
  } else {
    Membership membership = join(party);
    const Welcome& welcome = membership.welcome;
    place.world.first_rank = welcome.first_rank;
    place.world.master_port = welcome.master_port;
    place.world.run_id = welcome.run_id;
    place.attempt = welcome.attempt;
    place.is_finished = welcome.is_finished;
    if (request.program.empty()) request.loaded.config.training->checkpoint.resume_from = welcome.resume_from;
    place.cluster = follow(std::move(membership.connection), host_name(),
                           fmt::format("machine 0 ({})", config.main_process_ip));
  }
  config.main_process_port = place.world.master_port;
  if (!place.is_finished)
    log::info(fmt::format("machine {} of {}: ranks {} to {} of {}", config.machine_rank, config.num_machines,
                          place.world.first_rank, place.world.first_rank + place.world.local_ranks - 1,
                          place.world.num_processes));
  return place;
}

LaunchPlan make_plan(const LaunchRequest& request, const Place& place, const Variables& shared,
                     const std::filesystem::path& scratch) {
  const World& world = place.world;
  LaunchPlan plan;
  plan.world_size = world.num_processes;
  plan.catches_stop_signals = request.program.empty();
  plan.run_id = world.run_id;
  plan.grace_period_s = request.loaded.config.launch.grace_period_s;
  plan.scratch = scratch;
  const std::filesystem::path logs = log_root(request.loaded.config);
  for (int local_rank = 0; local_rank < world.local_ranks; ++local_rank) {
    WorkerPlan worker;
    worker.rank = world.first_rank + local_rank;
    worker.error_file = scratch / fmt::format("rank_{}_error.json", worker.rank);
    if (!logs.empty()) {
      worker.log_dir = logs / fmt::format("attempt_{}", place.attempt) / fmt::format("rank_{}", worker.rank);
      make_log_directory(worker.log_dir, request.loaded);
    }
    worker.variables = torchrun_variables(world, local_rank, worker.error_file);
    worker.variables.insert(shared.begin(), shared.end());
    plan.workers.push_back(std::move(worker));
  }
  return plan;
}

/// How the run ended.
Verdict verdict_on(const GroupOutcome& group) {
  const ExitCode code = exit_code_of_group(group);
  if (code != ExitCode::kWorkerFailed) return {code, ""};
  const WorkerOutcome* cause = root_cause(group);
  // Without a worker that failed by itself, the group was stopped because some ranks were preempted and
  // others did not follow.
  if (cause == nullptr) return {code, "some ranks stopped for preemption and others did not"};
  return {code, failure_report(group, *cause, host_name())};
}

/// The failure of the run; absent if it succeeded or was preempted.
std::optional<Error> failure_of(const Verdict& verdict) {
  switch (verdict.code) {
    case ExitCode::kSuccess:
    case ExitCode::kPreempted:
      return std::nullopt;
    case ExitCode::kInterrupted:
      return Error(ErrorKind::kInterrupted, "interrupted by SIGINT");
    case ExitCode::kTerminated:
      return Error(ErrorKind::kTerminated, "terminated by SIGTERM");
    default:
      return Error(ErrorKind::kWorker, verdict.report);
  }
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

/// Runs the workers of this machine to the end of the run.
ExitCode run_workers(const LaunchRequest& request, const Place& place, std::vector<std::string> command,
                     const Environment& environment) {
  const config::LoadedConfig& loaded = request.loaded;
  const bool trains = request.program.empty();
  Variables shared = machine_variables(loaded, physical_cores(), environment);
  if (place.cluster != nullptr && !environment("GLOO_SOCKET_IFNAME")) {
    const std::string interface = interface_of(place.cluster->own_address());
    if (!interface.empty()) shared["GLOO_SOCKET_IFNAME"] = interface;
  }
  if (trains) {
    if (place.world.machine_rank > 0) require_run_id(loaded, place.world.run_id);
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
  LaunchPlan plan = make_plan(request, place, shared, scratch->path());
  plan.command = std::move(command);
  const GroupOutcome group = supervise(plan, STDOUT_FILENO, STDERR_FILENO, place.cluster.get());
  const Verdict verdict = place.cluster != nullptr ? place.cluster->verdict() : verdict_on(group);
  std::optional<Error> failure = failure_of(verdict);
  scratch.reset();
  if (group.interrupted_by != 0) leave_soon(verdict.code);
  if (failure) throw *std::move(failure);
  if (verdict.code == ExitCode::kPreempted) log::info("stopped for preemption, after saving");
  return verdict.code;
}

}  // namespace

ExitCode launch(LaunchRequest request, const Environment& environment) {
  config::LoadedConfig& loaded = request.loaded;
  const bool trains = request.program.empty();
  // A reader of the output that goes away must not end the launcher, not even while it writes its last
  // message.
  ::signal(SIGPIPE, SIG_IGN);

  std::vector<std::string> command = request.program;
  if (trains) {
    const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe");
    command = {blamed_on("launch.worker", loaded.settings, [&] {
      return find_worker(self, loaded.config.launch.worker, environment).string();
    })};
  } else {
    command[0] = find_program(command[0], environment).string();
  }
  const Place place = [&] {
    const InterruptGuard guard;
    return loaded.config.launch.num_machines == 1 ? begin_alone(request) : begin_together(request);
  }();
  if (place.is_finished) return ExitCode::kSuccess;
  if (place.cluster == nullptr) return run_workers(request, place, std::move(command), environment);
  try {
    return run_workers(request, place, std::move(command), environment);
  } catch (const Error& error) {
    if (!place.cluster->is_over()) place.cluster->abandon(error.message());
    throw;
  }
}

}  // namespace accel::launch
