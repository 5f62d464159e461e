#include "core/launch/run_directory.hpp"

#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <system_error>
#include <thread>

#include "base/error.hpp"
#include "base/files/atomic_file.hpp"
#include "base/files/directory.hpp"
#include "base/files/file.hpp"
#include "ckpt/store/run_checkpoints.hpp"
#include "core/config/keys/document.hpp"

namespace accel::launch {
namespace {

constexpr const char* kRunIdName = "run_id";

/// Locks a directory, which `what` names in the hint.
std::unique_ptr<ckpt::RunLock> lock_for_run(const config::LoadedConfig& loaded, const std::string& run_id,
                                            const std::filesystem::path& folder, const char* what) {
  auto lock = ckpt::RunLock::take(folder, {ckpt::RunLock::kRun, run_id, loaded.config.launch.lock_timeout_s,
                                           fmt::format("wait until it ends, or choose another {}", what)});
  lock->terminate_when_taken();
  return lock;
}

}  // namespace

std::unique_ptr<ckpt::RunLock> claim_output(const config::LoadedConfig& loaded, const std::string& run_id) {
  return blamed_on("training.output_dir", loaded.settings, [&] {
    const config::TrainingConfig& training = *loaded.config.training;
    make_directories(training.output_dir);
    return lock_for_run(loaded, run_id, training.output_dir, "output_dir");
  });
}

std::unique_ptr<ckpt::RunLock> claim_logs(const config::LoadedConfig& loaded, const std::string& run_id) {
  const std::filesystem::path& folder = loaded.config.launch.log_dir;
  make_log_directory(folder, loaded);
  return blamed_on("launch.log_dir", loaded.settings,
                   [&] { return lock_for_run(loaded, run_id, folder, "directory"); });
}

std::filesystem::path write_resolved(const config::Config& config) {
  const std::filesystem::path& folder = config.training->output_dir;
  config::Config written = config;
  written.launch.directory = std::filesystem::current_path();
  std::string text;
  try {
    text = config::config_to_json(written).dump(2) + "\n";
  } catch (const nlohmann::json::exception&) {
    throw Error(ErrorKind::kUsage, "the configuration holds text that is not UTF-8");
  }
  const int machine = config.launch.machine_rank;
  const std::string name =
      machine == 0 ? "config.resolved.json" : fmt::format("config.resolved.machine_{}.json", machine);
  make_directories(folder);
  std::filesystem::path file = std::filesystem::absolute(folder / name).lexically_normal();
  write_file_atomically(file, text);
  return file;
}

void write_run_id(const config::Config& config, const std::string& run_id) {
  write_file_atomically(config.training->output_dir / kRunIdName, run_id + "\n");
}

void require_run_id(const config::LoadedConfig& loaded, const std::string& run_id) {
  blamed_on("training.output_dir", loaded.settings, [&] {
    const std::filesystem::path file = loaded.config.training->output_dir / kRunIdName;
    // A network file system may show a new file after a while.
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (true) {
      std::error_code missing;
      if (std::filesystem::exists(file, missing) && read_text_file(file) == run_id + "\n") return;
      if (std::chrono::steady_clock::now() > deadline) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
    throw Error(ErrorKind::kUsage, fmt::format("'{}' is not the directory that machine 0 has there",
                                               loaded.config.training->output_dir.string()))
        .hint("the output_dir of a run on several machines is on a file system that all of them share");
  });
}

void make_log_directory(const std::filesystem::path& folder, const config::LoadedConfig& loaded) {
  const bool is_set = !loaded.config.launch.log_dir.empty();
  blamed_on(is_set ? "launch.log_dir" : "training.output_dir", loaded.settings, [&] {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) throw system_error("create", folder.string(), error.value());
  });
}

}  // namespace accel::launch
