#include <ATen/ATen.h>

#include "train/optim/update_rules.hpp"

namespace accel::train {
namespace {

void update_part(const config::OptimizerOptions& options, UpdateBatch& batch, std::size_t part, double lr) {
  const bool has_momentum = *options.momentum != 0;
  at::Tensor& parameter = batch.parameters[part];
  at::Tensor gradient = batch.gradients[part];
  if (*options.weight_decay != 0) gradient = gradient.add(parameter, *options.weight_decay);
  at::Tensor& square_avg = batch.tensors[0][part];
  square_avg.mul_(*options.alpha).addcmul_(gradient, gradient, 1 - *options.alpha);
  at::Tensor root;
  if (*options.centered) {
    at::Tensor& grad_avg = batch.tensors[has_momentum ? 2 : 1][part];
    grad_avg.lerp_(gradient, 1 - *options.alpha);
    root = square_avg.addcmul(grad_avg, grad_avg, -1).sqrt_();
  } else {
    root = square_avg.sqrt();
  }
  root.add_(*options.eps);
  if (has_momentum) {
    at::Tensor& buffer = batch.tensors[1][part];
    buffer.mul_(*options.momentum).addcdiv_(gradient, root);
    parameter.add_(buffer, -lr);
  } else {
    parameter.addcdiv_(gradient, root, -lr);
  }
}

}  // namespace

// The parts are changed one after another, so that temporaries have the size of one.
void update_rmsprop(const OptimizerGroup& group, UpdateBatch& batch, double lr) {
  for (std::size_t i = 0; i < batch.parameters.size(); ++i) update_part(group.options, batch, i, lr);
}

}  // namespace accel::train
