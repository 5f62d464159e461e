#pragma once

#include <filesystem>

#include "base/leftover.hpp"
#include "core/config/loaded_config.hpp"

namespace accel::core {

/// Takes the output_dir of a training for this run: makes it if need be, locks it, and refuses one that
/// holds checkpoints or metrics of an earlier run. The lock lasts as long as the launcher, whose workers die
/// with it. Another run would overwrite the logs and the configuration of this one, and remove its unfinished
/// checkpoints. On a file system without locks nobody is refused for another run that is still going on.
LeftoverLock claim_output(const LoadedConfig& loaded);

/// Writes `config.resolved.json`, from which every worker reads its configuration, and returns its absolute
/// path.
std::filesystem::path write_resolved(const Config& config);

/// The directory of the ranks' logs; empty: no log files.
std::filesystem::path log_root(const Config& config);

/// Makes `folder`, which lies below log_root(), without the syncs that durable data needs.
void make_log_directory(const std::filesystem::path& folder, const LoadedConfig& loaded);

}  // namespace accel::core
