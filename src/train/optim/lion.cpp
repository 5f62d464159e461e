#include <ATen/ATen.h>

#include "train/optim/update_rules.hpp"

namespace accel::train {

// The parts are changed one after another, so that temporaries have the size of one.
void update_lion(const OptimizerGroup& group, UpdateBatch& batch, double lr) {
  const double beta1 = (*group.options.betas)[0];
  const double beta2 = (*group.options.betas)[1];
  for (std::size_t i = 0; i < batch.parameters.size(); ++i) {
    const at::Tensor& gradient = batch.gradients[i];
    at::Tensor& average = batch.tensors[0][i];
    const at::Tensor update = average.mul(beta1).add_(gradient, 1 - beta1).sign_();
    batch.parameters[i].mul_(1 - lr * *group.options.weight_decay).add_(update, -lr);
    average.mul_(beta2).add_(gradient, 1 - beta2);
  }
}

}  // namespace accel::train
