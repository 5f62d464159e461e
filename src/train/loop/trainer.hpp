#pragma once

#include <functional>

#include "core/config/config.hpp"
#include "train/c10d/group.hpp"

namespace accel::train {

/// How a training ended.
enum class TrainingEnd {
  kFinished,  ///< All steps are done.
  /// A signal asked to stop (base/stop_request.hpp), and there is a checkpoint of the last step.
  kPreempted,
};

/// Trains the model that `config` describes, as rank `group.rank()`: loads this rank's shard, goes on from a
/// checkpoint if the configuration names one, runs optimizer steps up to max_steps, logs, evaluates and
/// saves. Returns when the last checkpoint is durable. The steps run inside `guarded`. It gets an error
/// before anything is destroyed, above all the groups, and need not return then. With
/// TrainingConfig::only_evaluates it only evaluates (evaluate_only()). Collective.
TrainingEnd train(const config::Config& config, const Rank& rank, at::Device device, Group& group,
                  const std::function<void(const std::function<void()>&)>& guarded);

}  // namespace accel::train
