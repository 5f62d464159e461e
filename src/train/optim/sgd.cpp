#include <ATen/ATen.h>
#include <ATen/ops/_fused_sgd.h>

#include "train/optim/update_rules.hpp"

namespace accel::train {

void update_sgd(const OptimizerGroup& group, UpdateBatch& batch, double lr) {
  const config::OptimizerOptions& options = group.options;
  const bool has_momentum = *options.momentum != 0;
  // In a parameter's first step the buffer is its gradient, whatever the dampening is.
  at::_fused_sgd_(batch.parameters, batch.gradients,
                  has_momentum ? at::TensorList(batch.tensors[0]) : at::TensorList(), *options.weight_decay,
                  *options.momentum, lr, *options.dampening, *options.nesterov, /*maximize=*/false,
                  /*is_first_step=*/has_momentum && batch.steps == 1);
}

}  // namespace accel::train
