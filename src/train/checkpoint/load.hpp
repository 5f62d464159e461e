#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/io/read_sums.hpp"
#include "ckpt/store/run_state.hpp"
#include "plan/schedule/grad_scaler.hpp"
#include "train/fsdp/sharded_model.hpp"
#include "train/graph/run/random_state.hpp"
#include "train/optim/optimizer.hpp"

namespace accel::train {

/// What a checkpoint of a run says beside the tensors that load_run() restores.
struct LoadedRun {
  ckpt::RunState state;
  /// This rank's random state; absent if the checkpoint is of another number of ranks or kind of device.
  std::optional<RandomState> random;
  /// The respects in which the run goes on in another way than it would have, a sentence each; the same on
  /// every rank.
  std::vector<std::string> differences;
};

/// Throws Error (kCorrupt), which names `file`, unless `state` is one that a GradScaler can have.
void require_sound(const GradScaler::State& state, const std::filesystem::path& file);

/// Where the model or the optimizer number `index` of `checkpoint` is; `stem` is as in ckpt::saved_part().
/// Throws Error (kMissing) if it is not there.
std::filesystem::path part_to_resume(const std::filesystem::path& checkpoint, std::string_view stem,
                                     int index = 0);

/// Reads the state of the run in the checkpoint `directory`, and restores the buffers that each rank has for
/// itself and those of an adapter, as far as the number of ranks is the same. The model has been made with
/// the checkpoint as WeightOptions::resumed. Enough for an evaluation; load_run() does it, too.
ckpt::RunState restore_what_ranks_have(const std::filesystem::path& directory, ShardedModel& model,
                                       ckpt::ReadSums* sums);

/// Restores from the checkpoint `directory`, which CheckpointSaver wrote on any number of ranks, the state
/// of the optimizer, the loss scale, and what each rank has for itself. The model has its weights and buffers
/// already: it was made with this checkpoint as WeightOptions::resumed. Each rank reads the bytes of its
/// shard alone, and notes them in `sums` unless that is null. `settings` are those of this run, for a
/// comparison of what the state depends on. Throws Error: kMissing, kCorrupt, also if two
/// files are of different steps or ranks, or kUsage if the checkpoint is of another model.
LoadedRun load_run(const std::filesystem::path& directory, ShardedModel& model, Optimizer& optimizer,
                   std::optional<GradScaler>& scaler, at::Device device, ckpt::ReadSums* sums,
                   const std::map<std::string, std::string>& settings = {});

}  // namespace accel::train
