#pragma once

#include <optional>

#include "ckpt/store/run_state.hpp"
#include "train/checkpoint/state_items.hpp"
#include "train/fsdp/sharded_model.hpp"
#include "weights/checkpoint_tensors.hpp"

namespace accel::train {

/// The directory of a checkpoint with the tensors that each rank has for itself. Its name marks it as neither
/// a model nor an optimizer for those who search a checkpoint.
inline constexpr const char* kRankStateDirectory = "training_state";

/// Returns the tensors that `rank` has for itself, under the root key `training`: the persistent buffers of
/// the ranks other than 0, whose running statistics differ from rank 0's, and the error feedback and factors
/// of PowerSGD. With `adapter_only` those of rank 0 are among them, because the model's part has none. Empty
/// if no rank has any. Every rank computes the same items for `rank`, but the tensors of `sources` are those
/// of the calling rank. `persistent` is ShardedModel::persistent_buffers(), which walks all modules.
RankState rank_state(const ShardedModel& model, const NamedTensors& persistent, bool adapter_only, int rank);

/// Gives the model the persistent buffers that `rank` wrote, if it wrote any. Throws Error (kUsage) for one
/// of another shape.
void restore_buffers(CheckpointTensors& tensors, ShardedModel& model, int rank);

/// Restores what rank_state() returned for `rank`. `tensors` is of a checkpoint of as many ranks. Throws
/// Error (kUsage) for a tensor of another shape, which another configuration of the hook explains.
void restore_rank_state(CheckpointTensors& tensors, ShardedModel& model, int rank);

/// Returns the state of the hooks power_sgd that is not a tensor, or nothing if there are none.
std::optional<ckpt::PowerSgdState> power_sgd_state(const ShardedModel& model);

/// Restores what power_sgd_state() returned. Call it before restore_rank_state().
void restore_power_sgd(const ckpt::PowerSgdState& state, ShardedModel& model);

}  // namespace accel::train
