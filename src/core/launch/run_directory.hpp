#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "ckpt/store/run_lock.hpp"
#include "core/config/loaded_config.hpp"

namespace accel::launch {

/// Claims the output_dir of a training for this run: makes it if needed, and locks it. Hold the lock as long
/// as workers run: another run would overwrite the logs and the configuration of this one, and remove its
/// unfinished checkpoints. If another run takes it over, this process gets SIGTERM.
std::unique_ptr<ckpt::RunLock> claim_output(const config::LoadedConfig& loaded, const std::string& run_id);

/// Claims launch.log_dir, which must be set, in the same way: makes it and locks it.
std::unique_ptr<ckpt::RunLock> claim_logs(const config::LoadedConfig& loaded, const std::string& run_id);

/// Writes `config.resolved.json`, from which every worker reads its configuration. Returns its absolute path.
std::filesystem::path write_resolved(const config::Config& config);

/// Writes the number of this run into the output_dir, so that other machines can see that it is theirs too.
void write_run_id(const config::Config& config, const std::string& run_id);

/// Throws Error (kUsage) if the output_dir of this machine is not the one that machine 0 has.
void require_run_id(const config::LoadedConfig& loaded, const std::string& run_id);

/// Makes `folder`, which lies below config::log_root(), and its parents, without the syncs that durable data
/// needs.
void make_log_directory(const std::filesystem::path& folder, const config::LoadedConfig& loaded);

}  // namespace accel::launch
