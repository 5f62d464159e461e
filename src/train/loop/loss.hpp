#pragma once

#include <ATen/core/ivalue.h>

#include "core/config/config.hpp"
#include "train/loop/batches.hpp"

namespace accel::train {

/// Returns the model's inputs from a batch, in the configured order.
std::vector<c10::IValue> inputs_of(const config::ModelConfig& config, const Batch& batch);

/// Returns the output that ModelConfig::output names. An Error of kind kUsage says what forward returns if
/// there is none.
at::Tensor output_of(const config::ModelConfig& config, const c10::IValue& result);

/// Returns the scalars of ModelConfig::metrics without their graph, [n] of float64; undefined if there are
/// none. An output that is not one element is an Error of kind kUsage.
at::Tensor metrics_of(const config::ModelConfig& config, const c10::IValue& result);

/// Returns the scalar loss of a forward's result, in float32. With classes (ModelConfig::has_classes()) it is
/// between logits, or logarithms of probabilities, [..., classes] and int64 targets [...], the mean over all
/// targets that are not kIgnoredTarget. The other losses are torch's, between an output and targets of the
/// same shape. With `loss: model` it is the result itself. A result of the wrong type or shape is an Error of
/// kind kUsage.
at::Tensor loss_of(const config::ModelConfig& config, const c10::IValue& result, const Batch& batch);

/// What the mean of loss_of() has been divided by, but for its z_loss, as a tensor of one float64: the number
/// of labels that count, or the sum of their training.model.class_weights. Only for losses with classes, and
/// after loss_of().
at::Tensor weight_of_labels(const config::ModelConfig& config, const Batch& batch);

/// How many labels that count have the largest logit, as a tensor of one integer on the device of the logits.
/// Only for a cross entropy, and after loss_of(), which throws for outputs of another kind.
at::Tensor right_labels_of(const config::ModelConfig& config, const c10::IValue& result, const Batch& batch);

}  // namespace accel::train
