#pragma once

#include <filesystem>

#include "base/files/leftover.hpp"
#include "core/config/loaded_config.hpp"

namespace accel::launch {

/// Claims the output_dir of a training for this run: makes it if needed, and locks it. Hold the lock as long
/// as workers run: another run would overwrite the logs and the configuration of this one, and remove its
/// unfinished checkpoints. A file system without locks cannot refuse a second run.
LeftoverLock claim_output(const config::LoadedConfig& loaded);

/// Where a training begins.
struct Beginning {
  std::filesystem::path checkpoint;  ///< The checkpoint to go on from; empty to begin with step 1.
  bool is_finished = false;          ///< The checkpoint is of the last step, so there is nothing to do.
};

/// Decides by training.checkpoint.resume where the training begins, and says it in the log. Call it with the
/// lock of claim_output().
///
/// - auto: the newest whole checkpoint of output_dir. Newer ones that are not whole are renamed, with a
///   warning. If there is none but metrics of an earlier run, these are renamed.
/// - a path: that checkpoint, unless output_dir has newer ones: then the run has begun already, and goes on.
/// - none: step 1. Checkpoints or metrics of an earlier run are an Error of kind kUsage.
///
/// Checkpoints of which none is whole are an Error of kind kMissing: a run that begins anew would hide them.
Beginning find_beginning(const config::LoadedConfig& loaded);

/// Writes `config.resolved.json`, from which every worker reads its configuration. Returns its absolute path.
std::filesystem::path write_resolved(const config::Config& config);

/// The directory of the logs of the ranks; empty: no log files.
std::filesystem::path log_root(const config::Config& config);

/// Makes `folder`, which lies below log_root(), and its parents, without the syncs that durable data needs.
void make_log_directory(const std::filesystem::path& folder, const config::LoadedConfig& loaded);

}  // namespace accel::launch
