#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/environment.hpp"
#include "base/exit_code.hpp"
#include "base/host/signal_source.hpp"
#include "core/config/loaded_config.hpp"
#include "core/launch/agent/plan.hpp"

namespace accel::launch {

/// How large the part of a run is that goes on without some of its machines.
struct ReducedWorld {
  int num_processes = 1;
  int num_machines = 1;
  int machine_rank = 0;     ///< The number of this machine among those that are left.
  int local_processes = 1;  ///< The ranks of this machine.
};

/// A run: its configuration and its program.
struct LaunchRequest {
  config::LoadedConfig loaded;
  /// Resolves the same configuration for fewer machines. Errors are those of load_config(). It must be set if
  /// launch.min_machines is less than num_machines.
  std::function<config::LoadedConfig(const ReducedWorld&)> resolve;
  SignalSource* signals = nullptr;   ///< That of the process.
  std::vector<std::string> program;  ///< If it is empty, accel-worker trains.
  std::string version;               ///< That of accel, which is the same on all machines.
  bool discards_later = false;       ///< BeginningOptions::discards_later.
  bool keeps_stdout = false;         ///< What ranks print is shown on stderr; stdout is the caller's.
  bool hides_output = false;         ///< Of what ranks print only errors and warnings are shown.
  /// Makes the source of what is drawn below the output of one attempt, on a terminal; empty for none.
  std::function<StatusSource()> status;
  bool writes_events = false;  ///< stdout gets a JSON object a line for each event of the run.
};

/// Runs the configuration's training, or a program, on every rank of this machine, together with the
/// launchers of the other machines if there are several, and returns the exit code of the run. A failed
/// worker is an Error of kind kWorker whose message is the report; an interruption is an Error of kind
/// kInterrupted or kTerminated. Before any process starts, launch() finds the program, takes the port for
/// itself (world/port.hpp), claims the output_dir (run_directory.hpp), makes the directories of the logs and
/// writes `config.resolved.json`.
ExitCode launch(LaunchRequest request, const Environment& environment);

}  // namespace accel::launch
