#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "ckpt/store/run_checkpoints.hpp"
#include "core/config/config.hpp"
#include "plan/schedule/grad_scaler.hpp"
#include "train/c10d/group.hpp"
#include "train/fsdp/sharded_model.hpp"
#include "train/graph/random_state.hpp"
#include "train/optim/adamw.hpp"

namespace accel::train {

/// What a checkpoint is of, beside tensors.
struct TrainerState {
  std::int64_t step = 0;
  double epoch = 0;
  double lr = 0;
  std::uint64_t seed = 0;
  std::optional<GradScaler> scaler;                 ///< None but in float16.
  RandomState random = RandomState::now(at::kCPU);  ///< This rank's.
};

/// Saves a sharded checkpoint of model and optimizer under Accelerate's names, with trainer_state.json,
/// random_states_<rank>.json, in float16 scaler.json, and accel_manifest.json, and prunes old ones. When it
/// returns, the checkpoint is complete and durable under its name; if it throws, it does so on every rank,
/// the earlier checkpoints are as they were, and what was written is removed. That an old checkpoint cannot
/// be removed is a warning. Collective. Returns the checkpoint's path.
std::filesystem::path save_checkpoint(ckpt::RunCheckpoints& store, const ShardedModel& model,
                                      const AdamW& optimizer, const core::TrainingConfig& config,
                                      const TrainerState& state, Group& group);

}  // namespace accel::train
