#pragma once

#include <string>
#include <vector>

#include "base/environment.hpp"
#include "base/exit_code.hpp"
#include "core/config/loaded_config.hpp"

namespace accel::core {

/// What to run besides the configuration.
struct LaunchRequest {
  LoadedConfig loaded;
  std::vector<std::string> program;  ///< Empty: train with accel-worker.
};

/// Runs the configuration's training, or a program, on every rank of this machine and returns the exit code
/// of the run. A failed worker is an Error of kind kWorker whose message is the report; an interruption one
/// of kind kInterrupted or kTerminated. Before any process starts: the program must be found, the port must
/// be free or is replaced, no other run may write into the output_dir, and directories and
/// `config.resolved.json` are written.
ExitCode launch(LaunchRequest request, const Environment& environment);

}  // namespace accel::core
