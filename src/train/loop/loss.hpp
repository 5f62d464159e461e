#pragma once

#include <ATen/core/ivalue.h>

#include "core/config/config.hpp"
#include "train/loop/batches.hpp"

namespace accel::train {

/// The model's inputs from a batch, in the configured order.
std::vector<c10::IValue> inputs_of(const core::ModelConfig& config, const Batch& batch);

/// The scalar loss of a forward's result: cross-entropy between logits [..., classes] and int64 targets
/// [...], the mean over all targets that are not -100, computed in float32 (train/cross_entropy); or, under
/// `loss: model`, the result itself. A result of the wrong type or shape is an Error of kind kUsage.
at::Tensor loss_of(const core::ModelConfig& config, const c10::IValue& result, const Batch& batch);

}  // namespace accel::train
