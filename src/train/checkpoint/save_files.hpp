#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/dcp/rank_plan.hpp"
#include "ckpt/store/run_state.hpp"
#include "core/config/config.hpp"
#include "plan/schedule/grad_scaler.hpp"
#include "train/checkpoint/snapshot.hpp"
#include "train/checkpoint/state_items.hpp"
#include "train/graph/run/random_state.hpp"

namespace accel::train {

/// The state of a run that a checkpoint holds beside tensors.
struct TrainerState {
  ckpt::RunState run;
  std::optional<GradScaler> scaler;                 ///< Only float16 has a loss scale.
  RandomState random = RandomState::now(at::kCPU);  ///< This rank's random state.
  double next_scale = 1;                            ///< The factor of the learning rates in the next step.
  bool is_last = false;                             ///< The run ends with this step.
};

/// What one rank writes into one directory of a checkpoint.
struct SavedPart {
  std::string directory;
  ckpt::DcpRankPlan plan;
  std::vector<ItemSource> sources;  ///< Parallel to plan.items.
  /// The items of another rank, whose file rank 0 has to know for .metadata. Called by the thread that
  /// writes.
  std::function<std::vector<ckpt::DcpItem>(int rank)> items_of;
};

/// Everything that one rank writes for one checkpoint.
struct SaveJob {
  std::filesystem::path directory;
  int rank = 0;
  int world_size = 1;
  bool verify = false;  ///< Read each file again and compare it with what was written.
  config::StateDictType type = config::StateDictType::kSharded;
  std::vector<SavedPart> parts;
  TrainerState state;
  std::string weight_conversions;  ///< ModelNotes::weight_conversions.
  std::string adapter_config;      ///< ModelNotes::adapter_config; empty if all weights are saved.
  /// The further names of tied parameters in the model's part, each with the first name of its parameter.
  std::map<std::string, std::string> tied;
  /// For each optimizer, the learning rates of its param_groups, which the schedule multiplies.
  std::vector<std::vector<double>> base_rates;
};

/// Writes this rank's files and syncs them. Returns their entries for the manifest: a list of {name, bytes,
/// crc32}. Throws Error when `cancelled` becomes true. What it has written so far stays.
nlohmann::json write_files(const SaveJob& job, Snapshot& snapshot, const std::atomic<bool>& cancelled);

/// Writes what makes the files of all ranks a checkpoint: each .metadata, the state of the trainer, and the
/// manifest; and converts model and optimizer if `job.type` is another form than the sharded one. Called on
/// rank 0 when all ranks have written; `files` is what write_files() returned on each. Returns the bytes of
/// all files of the checkpoint.
std::uint64_t write_manifest(const SaveJob& job, const std::vector<nlohmann::json>& files);

}  // namespace accel::train
