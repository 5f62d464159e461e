#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/config/config.hpp"
#include "train/fsdp/sharded_model.hpp"
#include "train/loop/batches.hpp"

namespace accel::train {

/// Where an infinity or a NaN of a step comes from.
struct NonfiniteCause {
  std::string what;    ///< A sentence for the step's error; empty if nothing was found.
  std::string advice;  ///< What to do about it.
};

/// Looks for what has made the loss, or with `is_loss_finite` a gradient, infinite or NaN: in this order the
/// inputs of the step's micro-batches, the weights, the results of the units in a forward that is run again,
/// and the gradients. `samples` has the numbers of each micro-batch of this rank. With `runs_again` false
/// there is no other forward, which would take random numbers from the steps that follow. Collective; all
/// ranks return the same.
NonfiniteCause find_nonfinite(ShardedModel& model, const config::ModelConfig& config,
                              TrainingBatches& batches, const std::vector<std::vector<std::int64_t>>& samples,
                              bool is_loss_finite, bool runs_again);

}  // namespace accel::train
