#pragma once

#include <functional>

#include "core/config/config.hpp"
#include "train/c10d/group.hpp"

namespace accel::train {

/// Trains the model that `config` describes, as rank `group.rank()`: loads this rank's shard, runs max_steps
/// optimizer steps, logs, evaluates and saves. Returns when the last checkpoint is durable. The steps run
/// inside `guarded`. It gets an error before anything is destroyed, above all the groups, and need not return
/// then. Collective.
void train(const config::Config& config, const Rank& rank, at::Device device, Group& group,
           const std::function<void(const std::function<void()>&)>& guarded);

}  // namespace accel::train
