#include "cli/launch/training_check.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "base/error.hpp"
#include "ckpt/store/resume_point.hpp"
#include "ckpt/store/run_checkpoints.hpp"
#include "cli/launch/launch_flags.hpp"
#include "core/launch/beginning.hpp"
#include "core/launch/find_program.hpp"
#include "preflight/preflight.hpp"

namespace accel::cli {

namespace {

namespace fs = std::filesystem;

/// The newest checkpoint of the run that is in output_dir.
struct Newest {
  fs::path path;
  std::int64_t step = 0;
};

std::optional<Newest> newest_of(const config::TrainingConfig& training) {
  // A run goes on from a checkpoint that is there even if it writes none.
  if (training.checkpoint.resume == "none") return std::nullopt;
  const ckpt::RunCheckpoints checkpoints(training.output_dir / "checkpoints");
  const auto step = ckpt::newest_whole(checkpoints).step;
  return step ? std::optional(Newest{checkpoints.path_of(*step), *step}) : std::nullopt;
}

/// Throws unless a launch can write output_dir, or make it.
void require_output(const config::LoadedConfig& loaded) {
  config::blamed_on("training.output_dir", loaded.settings, [&] {
    fs::path path = fs::absolute(loaded.config.training->output_dir).lexically_normal();
    std::error_code error;
    while (!fs::exists(fs::symlink_status(path, error)) && path.has_relative_path())
      path = path.parent_path();
    const bool is_directory = fs::is_directory(path, error);
    if (is_directory && ::access(path.c_str(), W_OK | X_OK) == 0) return;
    const char* why = is_directory ? std::strerror(errno) : "it is not a directory";
    throw Error(ErrorKind::kUsage,
                fmt::format("'{}' cannot be written: '{}': {}", loaded.config.training->output_dir.string(),
                            path.string(), why))
        .hint("choose another output_dir");
  });
}

}  // namespace

std::optional<TrainingData> check_training(const config::LoadedConfig& loaded) {
  if (!loaded.config.training || !loaded.config.launch.preflight) return std::nullopt;
  const config::TrainingConfig& training = *loaded.config.training;
  require_output(loaded);
  const auto newest = newest_of(training);
  if (newest && launch::is_finished(loaded, newest->path, newest->step)) {
    if (training.checkpoint.resume == "auto") require_model_of(loaded, newest->path);
    return std::nullopt;
  }
  launch::require_named_checkpoint(loaded);
  // Rank 0 alone runs it.
  if (!training.metrics_command.empty() && loaded.config.launch.machine_rank == 0) {
    config::blamed_on("training.metrics.command", loaded.settings, [&] {
      return launch::find_program(training.metrics_command.front(), environment_variable);
    });
  }
  const std::string& resume = training.checkpoint.resume;
  return preflight(
      loaded, {.begins = resume == "none" || (resume == "auto" && !newest),
               .checkpoint = newest && resume == "auto" ? newest->path : fs::path(),
               .has_model = !training.model.broadcast_from_rank0 || loaded.config.launch.machine_rank == 0});
}

std::string finished_run(const config::LoadedConfig& loaded) {
  if (!loaded.config.training) return {};
  const config::TrainingConfig& training = *loaded.config.training;
  const auto newest = newest_of(training);
  if (!newest || !launch::is_finished(loaded, newest->path, newest->step)) return {};
  return fmt::format(
      "the run in '{}' is finished, at step {}: a launch has nothing to do, and neither its "
      "data nor its weights are checked",
      training.output_dir.string(), newest->step);
}

}  // namespace accel::cli
