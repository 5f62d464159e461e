#include "core/launch/closing.hpp"

#include <fmt/format.h>

#include "ckpt/store/run_checkpoints.hpp"
#include "core/launch/beginning.hpp"

namespace accel::launch {
namespace {

std::string how_to_go_on(const config::TrainingConfig& training) {
  // With a path, too, a run goes on from its own newest checkpoint.
  return training.checkpoint.resume == "none" ? "training.checkpoint.resume: auto goes on from it"
                                              : "the same command goes on from it";
}

}  // namespace

std::string closing_of(const config::TrainingConfig& training, ExitCode code, std::int64_t step) {
  if (!training.checkpoint.enabled()) {
    if (code == ExitCode::kSuccess || step <= 1) return "";
    return fmt::format("{} steps are lost, since no checkpoint was written: training.checkpoint.every is 0",
                       step - 1);
  }
  const std::int64_t newest = newest_step(training);
  const std::string path = ckpt::RunCheckpoints(training.output_dir / "checkpoints").path_of(newest).string();
  if (code == ExitCode::kSuccess) {
    if (newest == 0) return "";
    if (training.checkpoint.exports_safetensors)
      return fmt::format("the run is finished: the weights are in '{}'",
                         (training.output_dir / "export").string());
    return fmt::format(
        "the run is finished: `accel merge-weights {} OUTPUT` writes the weights of '{}' as safetensors",
        training.output_dir.string(), path);
  }
  if (newest == 0)
    return step <= 1 ? "" : fmt::format("{} steps are lost, since there is no checkpoint yet", step - 1);
  const std::int64_t lost = step - 1 - newest;
  return fmt::format(
      "the newest checkpoint is '{}', of step {} of {}{}; {}", path, newest, training.max_steps,
      lost > 0 ? fmt::format(", and {} later {} lost", lost, lost == 1 ? "step is" : "steps are") : "",
      how_to_go_on(training));
}

}  // namespace accel::launch
