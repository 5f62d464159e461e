#include "cli/training_check.hpp"

#include "core/launch/beginning.hpp"
#include "preflight/preflight.hpp"

namespace accel::cli {

void check_training(const config::LoadedConfig& loaded) {
  if (!loaded.config.training) return;
  const config::TrainingConfig& training = *loaded.config.training;
  const bool may_go_on = training.checkpoint.resume != "none";
  const std::int64_t done = may_go_on ? launch::newest_step(training) : 0;
  if (done >= training.max_steps) return;
  preflight(
      loaded,
      {.begins = training.checkpoint.resume == "none" || (training.checkpoint.resume == "auto" && done == 0),
       .has_model = !training.model.broadcast_from_rank0 || loaded.config.launch.machine_rank == 0});
}

}  // namespace accel::cli
