#pragma once

#include <functional>

#include "core/config/config.hpp"
#include "train/c10d/group.hpp"

namespace accel::train {

/// Trains the model that `config` describes, as rank `group.rank()`: loads this rank's shard, runs max_steps
/// optimizer steps, logs, evaluates and saves on the way. Collective. Returns when the last checkpoint is
/// durable. The steps run inside `guarded`, which gets the error before anything is destroyed, groups above
/// all, and need not return then.
void train(const core::Config& config, const Rank& rank, at::Device device, Group& group,
           const std::function<void(const std::function<void()>&)>& guarded);

}  // namespace accel::train
