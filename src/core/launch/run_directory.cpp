#include "core/launch/run_directory.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <system_error>

#include "base/error.hpp"
#include "base/files/atomic_file.hpp"
#include "base/files/directory.hpp"
#include "ckpt/store/run_checkpoints.hpp"

namespace accel::launch {
namespace {

LeftoverLock lock_output(const std::filesystem::path& folder) {
  make_directories(folder);
  LeftoverLock lock(std::filesystem::canonical(folder));
  if (lock.state() == LeftoverLock::State::kTaken) {
    throw Error(ErrorKind::kUsage, fmt::format("another run is writing into '{}'", folder.string()))
        .hint("wait until it ends, or choose another output_dir");
  }
  return lock;
}

}  // namespace

LeftoverLock claim_output(const config::LoadedConfig& loaded) {
  return blamed_on("training.output_dir", loaded.settings, [&] {
    const config::TrainingConfig& training = *loaded.config.training;
    return lock_output(training.output_dir);
  });
}

std::filesystem::path write_resolved(const config::Config& config) {
  const std::filesystem::path& folder = config.training->output_dir;
  std::string text;
  try {
    text = config::config_to_json(config).dump(2) + "\n";
  } catch (const nlohmann::json::exception&) {
    throw Error(ErrorKind::kUsage, "the configuration holds text that is not UTF-8");
  }
  std::filesystem::path file = std::filesystem::absolute(folder / "config.resolved.json").lexically_normal();
  write_file_atomically(file, text);
  return file;
}

std::filesystem::path log_root(const config::Config& config) {
  if (!config.launch.log_dir.empty()) return config.launch.log_dir;
  return config.training ? config.training->output_dir / "logs" : std::filesystem::path();
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
