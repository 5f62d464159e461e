#pragma once

#include <filesystem>
#include <optional>

#include "ckpt/store/run_checkpoints.hpp"
#include "ckpt/store/run_state.hpp"
#include "core/config/config.hpp"
#include "plan/schedule/grad_scaler.hpp"
#include "train/c10d/group.hpp"
#include "train/fsdp/sharded_model.hpp"
#include "train/graph/random_state.hpp"
#include "train/optim/adamw.hpp"

namespace accel::train {

/// The state of a run that a checkpoint holds beside tensors.
struct TrainerState {
  ckpt::RunState run;
  std::optional<GradScaler> scaler;                 ///< Only float16 has a loss scale.
  RandomState random = RandomState::now(at::kCPU);  ///< This rank's random state.
};

/// Saves a sharded checkpoint of model and optimizer under Accelerate's names, with trainer_state.json,
/// random_states_<rank>.json, in float16 scaler.json, training_state/ for what each rank has for itself, and
/// accel_manifest.json, and prunes old checkpoints.
/// When it returns, the checkpoint is complete and durable under its name. If it throws, it throws on every
/// rank, the earlier checkpoints are unchanged, and what was written is removed; with `survives` the ranks
/// can go on then. An old checkpoint that
/// cannot be removed is a warning. Collective. Returns the checkpoint's path.
std::filesystem::path save_checkpoint(ckpt::RunCheckpoints& store, const ShardedModel& model,
                                      const AdamW& optimizer, const config::TrainingConfig& config,
                                      const TrainerState& state, Group& group, bool survives = false);

}  // namespace accel::train
