#pragma once

#include <filesystem>
#include <string>

#include "ckpt/store/run_state.hpp"
#include "train/c10d/group.hpp"
#include "train/fsdp/sharded_model.hpp"

namespace accel::train {

/// A hash of the frozen parameters, from up to 64 elements of each. It is the same on all ranks, and does not
/// depend on how many there are. Collective over `group`, the group of all ranks.
[[nodiscard]] std::string frozen_hash(const ShardedModel& model, Group& group);

/// Throws Error (kUsage) if `checkpoint`, whose state is `state`, is of an adapter on other frozen weights
/// than the model has. Collective.
void require_frozen(const std::filesystem::path& checkpoint, const ckpt::RunState& state,
                    const ShardedModel& model, Group& group);

}  // namespace accel::train
