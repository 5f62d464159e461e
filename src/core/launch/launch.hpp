#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/exit_code.hpp"
#include "core/config/resolve/load_config.hpp"
#include "core/launch/agent/plan.hpp"

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

/// The accel-worker that belongs to this executable: `../libexec/accel/accel-worker` beside an installed one,
/// `../train/accel-worker` in a build tree, `../lib/python3.*/site-packages/accel_worker/accel-worker` where
/// the wheels are installed, else what ACCEL_WORKER names. `chosen` (launch.worker) goes before all.
std::filesystem::path find_worker(const std::filesystem::path& executable,
                                  const std::filesystem::path& chosen, const Environment& environment);

/// `name` as a shell would find it: itself if it has a slash, else along PATH.
std::filesystem::path find_program(const std::string& name, const Environment& environment);

}  // namespace accel::core
