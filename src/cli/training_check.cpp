#include "cli/training_check.hpp"

#include "ckpt/store/resume_point.hpp"
#include "ckpt/store/run_checkpoints.hpp"
#include "cli/launch_flags.hpp"
#include "core/launch/beginning.hpp"
#include "core/launch/find_program.hpp"
#include "preflight/preflight.hpp"

namespace accel::cli {

std::optional<TrainingData> check_training(const config::LoadedConfig& loaded) {
  if (!loaded.config.training || !loaded.config.launch.preflight) return std::nullopt;
  const config::TrainingConfig& training = *loaded.config.training;
  const bool may_go_on = training.checkpoint.resume != "none";
  // A run goes on from a checkpoint that is there even if it writes none.
  const ckpt::RunCheckpoints checkpoints(training.output_dir / "checkpoints");
  const auto newest = may_go_on ? ckpt::newest_whole(checkpoints).step : std::nullopt;
  if (newest && *newest >= launch::last_step_from(loaded, checkpoints.path_of(*newest))) return std::nullopt;
  // Rank 0 alone runs it.
  if (!training.metrics_command.empty() && loaded.config.launch.machine_rank == 0) {
    config::blamed_on("training.metrics.command", loaded.settings, [&] {
      return launch::find_program(training.metrics_command.front(), environment_variable);
    });
  }
  return preflight(
      loaded,
      {.begins = training.checkpoint.resume == "none" || (training.checkpoint.resume == "auto" && !newest),
       .has_model = !training.model.broadcast_from_rank0 || loaded.config.launch.machine_rank == 0});
}

}  // namespace accel::cli
