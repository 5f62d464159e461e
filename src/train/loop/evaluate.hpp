#pragma once

#include "core/config/config.hpp"
#include "train/fsdp/sharded_model.hpp"
#include "train/loop/batches.hpp"

namespace accel::train {

/// Returns the mean loss over every label of the held-out data that counts, in nats, or over every sample if
/// the model computes its loss itself. Runs without gradients and in evaluation mode. Collective: a rank that
/// has run out of batches takes part in the others' gathers with a batch that does not count.
double evaluate(ShardedModel& model, const config::TrainingConfig& config, const Samples& data, Labels labels,
                at::Device device);

}  // namespace accel::train
