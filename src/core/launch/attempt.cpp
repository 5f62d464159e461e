#include "core/launch/attempt.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <exception>
#include <optional>

#include "base/error.hpp"
#include "base/files/flight_record.hpp"
#include "base/host/cpus.hpp"
#include "base/host/host_name.hpp"
#include "base/log.hpp"
#include "base/terminal.hpp"
#include "core/launch/agent/flight_home.hpp"
#include "core/launch/agent/report.hpp"
#include "core/launch/agent/scratch.hpp"
#include "core/launch/agent/supervisor.hpp"
#include "core/launch/run_directory.hpp"
#include "core/launch/world/address.hpp"
#include "core/launch/world/affinity.hpp"
#include "core/launch/world/environment.hpp"
#include "core/launch/world/machine.hpp"

namespace accel::launch {
namespace {

/// The variables that all ranks of this machine get.
Variables shared_variables(const LaunchRequest& request, const Place& place, const Environment& environment) {
  const config::LoadedConfig& loaded = request.loaded;
  Variables shared = machine_variables(loaded, physical_cores(), environment);
  if (place.cluster != nullptr && !environment("GLOO_SOCKET_IFNAME")) {
    const std::string interface = interface_of(place.cluster->own_address());
    if (!interface.empty()) shared["GLOO_SOCKET_IFNAME"] = interface;
  }
  if (request.program.empty()) {
    if (place.world.machine_rank > 0) require_run_id(loaded, place.world.run_id);
    shared["ACCEL_CONFIG_FILE"] = write_resolved(loaded.config).string();
    if (place.lock != nullptr) shared["ACCEL_RUN_LOCK"] = place.lock->token();
    shared["ACCEL_ATTEMPT"] = std::to_string(place.attempt);
    shared.merge(worker_variables(environment));
  } else {
    shared.merge(accelerate_variables(loaded));
    // Python buffers what it prints into a pipe, and loses it when it is killed.
    if (!environment("PYTHONUNBUFFERED")) shared.emplace("PYTHONUNBUFFERED", "1");
  }
  return shared;
}

/// Whether the program is to run by itself. Accelerate then gives it no place in a world, of which
/// Accelerate's own code would make DistributedDataParallel. The default NO does not count: a program without
/// a configuration gets torchrun's environment.
bool runs_by_itself(const LaunchRequest& request) {
  return !request.program.empty() && request.loaded.settings.get<std::string>("distributed_type") == "NO";
}

/// Sets what is shown of a worker's output: `tee` is that of the configuration.
void show_streams(const std::vector<int>& tee, int local_rank, WorkerPlan& worker) {
  constexpr int kOut = 1;
  constexpr int kErr = 2;
  const int asked = tee.empty() ? -1 : tee.at(static_cast<std::size_t>(local_rank));
  const int streams = asked >= 0 ? asked : worker.rank == 0 ? kOut | kErr : kErr;
  worker.shows_out = (streams & kOut) != 0;
  worker.shows_err = (streams & kErr) != 0;
  worker.has_prefix = worker.rank != 0 || asked > 0;
}

LaunchPlan make_plan(const LaunchRequest& request, const Place& place, const Variables& shared,
                     const std::filesystem::path& scratch, const Environment& environment) {
  const World& world = place.world;
  LaunchPlan plan;
  plan.world_size = world.num_processes;
  plan.catches_stop_signals = request.program.empty();
  plan.saves_when_asked = plan.catches_stop_signals && request.loaded.config.training->checkpoint.enabled();
  plan.writes_events = request.writes_events;
  plan.moves_out = request.writes_events || request.keeps_stdout;
  if (request.status && world.machine_rank == 0 && can_redraw(STDERR_FILENO)) plan.status = request.status();
  plan.run_id = world.run_id;
  plan.grace_period_s = request.loaded.config.launch.grace_period_s;
  plan.hang_timeout_s = request.loaded.config.launch.hang_timeout_s;
  plan.scratch = scratch;
  const config::LaunchConfig& launch = request.loaded.config.launch;
  std::vector<std::vector<int>> cpus(static_cast<std::size_t>(world.local_ranks));
  if (launch.binds_cpus) cpus = cpus_of_ranks(launch, allowed_cpus(), environment);
  const std::filesystem::path logs = log_root(request.loaded.config);
  for (int local_rank = 0; local_rank < world.local_ranks; ++local_rank) {
    WorkerPlan worker;
    worker.rank = world.first_rank + local_rank;
    worker.cpus = cpus.at(static_cast<std::size_t>(local_rank));
    worker.reads_stdin = local_rank == 0 && !request.program.empty();
    show_streams(request.loaded.config.launch.tee, local_rank, worker);
    if (request.hides_output) worker.shows_out = false;
    worker.shows_only_warnings = request.hides_output && request.program.empty();
    worker.reports_error = request.program.empty();
    worker.error_file = scratch / fmt::format("rank_{}_error.json", worker.rank);
    if (!logs.empty()) {
      worker.log_dir = logs / fmt::format("attempt_{}", place.attempt) / fmt::format("rank_{}", worker.rank);
      worker.log_rotation = {launch.log_max_bytes, launch.log_files};
      make_log_directory(worker.log_dir, request.loaded);
    }
    if (!runs_by_itself(request)) worker.variables = torchrun_variables(world, local_rank, worker.error_file);
    worker.variables.insert(shared.begin(), shared.end());
    worker.flight_record = scratch / fmt::format("rank_{}.flight", worker.rank);
    if (create_flight_record(worker.flight_record, worker.rank)) {
      worker.variables[kFlightVariable] = worker.flight_record.string();
      if (!worker.log_dir.empty()) link_flight_record(worker.flight_record, worker.log_dir);
    } else {
      const bool watches = request.program.empty() && plan.hang_timeout_s > 0;
      log::warn(fmt::format("'{}' cannot be made{}", worker.flight_record.string(),
                            watches ? ": whether this rank makes progress is not seen" : ""));
      worker.flight_record.clear();
    }
    plan.workers.push_back(std::move(worker));
  }
  return plan;
}

/// How far the ranks of this machine were: the largest numbers of their records.
FlightProgress last_progress(const LaunchPlan& plan) {
  FlightProgress last;
  for (const WorkerPlan& worker : plan.workers) {
    const FlightProgress its = read_flight_progress(worker.flight_record).value_or(FlightProgress{});
    last.step = std::max(last.step, its.step);
    last.done = std::max(last.done, its.done);
  }
  return last;
}

AttemptEnd run_workers(const LaunchRequest& request, const Place& place,
                       const std::vector<std::string>& command, const Environment& environment) {
  const Variables shared = shared_variables(request, place, environment);
  const Scratch scratch(temporary_folder(environment));
  LaunchPlan plan = make_plan(request, place, shared, scratch.path(), environment);
  plan.command = command;
  const GroupOutcome group =
      supervise(plan, STDOUT_FILENO, STDERR_FILENO, *request.signals, place.cluster.get());
  const FlightProgress last = last_progress(plan);
  // The file system that has not taken the logs would not take the records.
  if (group.incomplete_logs.empty()) keep_flight_records(scratch.path());
  if (place.cluster == nullptr) {
    AttemptEnd end = end_of_all({end_of_machine(group, host_name(), 0)});
    end.incomplete_logs = group.incomplete_logs;
    end.asked_by = group.interrupted_by != 0 ? group.interrupted_by : group.interrupted_late;
    end.step = last.step;
    end.done = last.done;
    return end;
  }
  // If there is no end of all machines, the user did not wait for the others.
  AttemptEnd end = place.cluster->end().value_or(AttemptEnd{exit_code_of_signal(group.interrupted_by), ""});
  if (place.cluster->end() && is_asked_to_end(group) && !end.was_interrupted) place.cluster->leave();
  end.was_interrupted |= is_asked_to_end(group);
  end.incomplete_logs = group.incomplete_logs;
  end.step = last.step;
  end.done = last.done;
  return end;
}

}  // namespace

AttemptEnd run_attempt(const LaunchRequest& request, const Place& place,
                       const std::vector<std::string>& command, const Environment& environment) {
  if (place.cluster == nullptr) return run_workers(request, place, command, environment);
  try {
    return run_workers(request, place, command, environment);
  } catch (const std::exception& failure) {
    const Error error = error_of(failure);
    if (!is_by_signal(error.kind())) place.cluster->abandon(error.message());
    throw;
  }
}

}  // namespace accel::launch
