#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "core/config/config.hpp"
#include "train/fsdp/sharded_model.hpp"
#include "train/loop/batches.hpp"

namespace accel::train {

/// What the forward of a batch yields. With sequence parallelism a rank has computed a part of the batch, and
/// the values are such that the mean over the ranks with the other parts is that of the batch.
struct ModelLoss {
  at::Tensor loss;     ///< The result of loss_of(), or of linear_cross_entropy().
  at::Tensor right;    ///< The result of right_labels_of(). Only for losses with classes, without grad.
  at::Tensor nll;      ///< The mean negative log-likelihood of the labels that count, as `right`.
  at::Tensor metrics;  ///< The result of metrics_of(). Only with grad.
};

/// Runs forward on a batch and returns its loss. ModelConfig::fused_head says whether the model's last linear
/// is computed with the loss, some rows at a time, if the model has one (ShardedModel::head()). Collective.
ModelLoss forward_loss(ShardedModel& model, const config::ModelConfig& config, const Batch& batch);

/// Calls ShardedModel::compare_parts() with a batch. Collective.
void compare_parts(ShardedModel& model, const config::ModelConfig& config, const Batch& batch);

/// Throws Error (kUsage) if the configuration asks for a fused head that the model does not have.
void require_head(const config::ModelConfig& config, const FoundHead& head);

}  // namespace accel::train
