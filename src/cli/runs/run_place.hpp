#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/store/best_checkpoint.hpp"

namespace accel::cli {

/// The directory of the checkpoints of a run, and the output_dir, which a run locks.
struct RunPlace {
  std::filesystem::path checkpoints;
  std::filesystem::path output;

  [[nodiscard]] std::filesystem::path metrics() const { return output / "metrics.jsonl"; }
};

/// The place of the run whose output_dir, or whose directory `checkpoints`, is `path`. Throws Error
/// (kMissing) if it has no checkpoints.
[[nodiscard]] RunPlace place_of_run(const std::string& path);

/// Whether `path` is the output_dir of a training that has saved a checkpoint.
[[nodiscard]] bool is_run(const std::filesystem::path& path);

/// Which checkpoint of a run a command takes; the newest complete one by default.
struct CheckpointChoice {
  std::optional<std::int64_t> step;
  bool best = false;  ///< The best by best_metric_of().
};

/// The number by which the checkpoints of a run are compared: training.best_metric of its
/// config.resolved.json, or the held-out loss. Throws Error if that file is malformed.
[[nodiscard]] ckpt::BestMetric best_metric_of(const RunPlace& run);

/// The directory of the checkpoint that `choice` takes of a run. Warns of newer ones that are passed over
/// because they are not complete. Throws Error (kMissing) that says what there is, if the run has none such.
[[nodiscard]] std::filesystem::path chosen_checkpoint(const RunPlace& run, const CheckpointChoice& choice);

/// The configuration and tokenizer of the model that the run trains: the files beside the weights that it
/// began with, or the configuration of the adapter in `checkpoint`. The run's config.resolved.json says where
/// they are. Empty if there are none. Throws Error if that file is malformed.
[[nodiscard]] std::vector<std::filesystem::path> assets_of_run(const RunPlace& run,
                                                               const std::filesystem::path& checkpoint);

}  // namespace accel::cli
