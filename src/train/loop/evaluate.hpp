#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/config/config.hpp"
#include "train/fsdp/sharded_model.hpp"
#include "train/loop/batches.hpp"

namespace accel::train {

/// What an evaluation has yielded.
struct Evaluation {
  /// The mean over every label of the held-out data that counts, in nats, or over every sample if the model
  /// computes its loss itself.
  double loss = 0;
  /// The part of these labels whose class has the largest logit; absent if the model computes its loss.
  std::optional<double> accuracy;
  /// The exponential of the mean negative log-likelihood of these labels, whatever class weights, label
  /// smoothing and z-loss the loss has; absent if the model computes its loss.
  std::optional<double> perplexity;
};

/// A set of held-out data. The name is that of config::HeldOutData.
struct HeldOutSamples {
  std::string name;
  Samples samples;
};

/// Opens the held-out data of a training. A set without a sample is an Error of kind kUsage.
std::vector<HeldOutSamples> open_held_out(const config::TrainingConfig& config,
                                          const InputDtypes& input_dtypes);

/// Evaluates the model on held-out data, without gradients and in evaluation mode. All ranks get the same
/// bits. Collective: a rank that has run out of batches takes part in the others' gathers with a batch that
/// does not count. Returns nothing, on all ranks, if one has been asked to stop meanwhile
/// (base/stop_request).
std::optional<Evaluation> evaluate(ShardedModel& model, const config::TrainingConfig& config,
                                   const Samples& data, Labels labels, at::Device device);

}  // namespace accel::train
