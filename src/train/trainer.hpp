#pragma once

#include "core/config.hpp"
#include "train/dist/group.hpp"

namespace accel::train {

/// Trains the model that `config` describes, as rank `group.rank()`: loads this rank's shard, runs max_steps
/// optimizer steps, logs, evaluates and saves on the way. Collective. Returns when the last checkpoint is
/// durable.
void train(const core::Config& config, const Rank& rank, at::Device device, Group& group);

}  // namespace accel::train
