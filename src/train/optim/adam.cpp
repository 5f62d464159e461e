#include <ATen/ATen.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>

#include "train/optim/update_rules.hpp"

namespace accel::train {

void update_adam(const OptimizerGroup& group, UpdateBatch& batch, double lr) {
  const config::OptimizerOptions& options = group.options;
  // The kernel reads the number of this step, counted from 1.
  const at::Tensor step =
      at::full({}, static_cast<double>(batch.steps), batch.parameters.front().options().dtype(at::kFloat));
  const std::vector<at::Tensor> steps(batch.parameters.size(), step);
  const at::TensorList largest = *options.amsgrad ? at::TensorList(batch.tensors[2]) : at::TensorList();
  const auto run = [&](auto&& kernel) {
    kernel(batch.parameters, batch.gradients, batch.tensors[0], batch.tensors[1], largest, steps, lr,
           (*options.betas)[0], (*options.betas)[1], *options.weight_decay, *options.eps, *options.amsgrad,
           /*maximize=*/false);
  };
  if (group.type == "adamw") {
    run([](const auto&... arguments) { at::_fused_adamw_(arguments...); });
  } else {
    run([](const auto&... arguments) { at::_fused_adam_(arguments...); });
  }
}

}  // namespace accel::train
