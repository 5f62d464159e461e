#include <ATen/ATen.h>
#include <ATen/ops/_fused_adagrad.h>

#include "train/optim/update_rules.hpp"

namespace accel::train {

void update_adagrad(const OptimizerGroup& group, UpdateBatch& batch, double lr) {
  const config::OptimizerOptions& options = group.options;
  // The kernel reads the number of this step, counted from 1.
  const at::Tensor step =
      at::full({}, static_cast<double>(batch.steps), batch.parameters.front().options().dtype(at::kFloat));
  const std::vector<at::Tensor> steps(batch.parameters.size(), step);
  at::_fused_adagrad_(batch.parameters, batch.gradients, batch.tensors[0], steps, lr, *options.lr_decay,
                      *options.weight_decay, *options.eps, /*maximize=*/false);
}

}  // namespace accel::train
