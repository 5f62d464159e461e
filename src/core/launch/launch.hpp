#pragma once

#include <string>
#include <vector>

#include "base/environment.hpp"
#include "base/exit_code.hpp"
#include "core/config/loaded_config.hpp"

namespace accel::launch {

/// A run: its configuration and its program.
struct LaunchRequest {
  config::LoadedConfig loaded;
  std::vector<std::string> program;  ///< If it is empty, accel-worker trains.
  std::string version;               ///< That of accel, which is the same on all machines.
  bool writes_events = false;        ///< stdout gets a JSON object a line for each event of the run.
};

/// Runs the configuration's training, or a program, on every rank of this machine, together with the
/// launchers of the other machines if there are several, and returns the exit code of the run. A failed
/// worker is an Error of kind kWorker whose message is the report; an interruption is an Error of kind
/// kInterrupted or kTerminated. Before any process starts, launch() finds the program, replaces a port that
/// is in use, claims the output_dir (run_directory.hpp), makes the directories of the logs and writes
/// `config.resolved.json`.
ExitCode launch(LaunchRequest request, const Environment& environment);

}  // namespace accel::launch
