#include "core/launch/closing.hpp"

#include <fmt/format.h>

#include <algorithm>

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

std::string closing_of(const config::TrainingConfig& training, ExitCode code, std::int64_t first_step,
                       std::int64_t done) {
  const auto lost = [&](std::int64_t kept) { return done - std::max(kept, first_step - 1); };
  if (!training.checkpoint.enabled()) {
    if (code == ExitCode::kSuccess || lost(0) <= 0) return "";
    return fmt::format("{} steps are lost, since no checkpoint was written: training.checkpoint.every is 0",
                       lost(0));
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
    return lost(0) <= 0 ? "" : fmt::format("{} steps are lost, since there is no checkpoint yet", lost(0));
  const std::int64_t later = lost(newest);
  // A run that failed before its first step will fail again.
  const bool goes_on = code != ExitCode::kWorkerFailed || done >= first_step;
  return fmt::format(
      "the newest checkpoint is '{}', of step {} of {}{}{}", path, newest, training.max_steps,
      later > 0 ? fmt::format(", and {} later {} lost", later, later == 1 ? "step is" : "steps are") : "",
      goes_on ? "; " + how_to_go_on(training) : "");
}

}  // namespace accel::launch
