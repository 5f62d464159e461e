#include "train/optim/adamw.hpp"

#include <ATen/ATen.h>
#include <ATen/ops/_fused_adamw.h>

namespace accel::train {

std::vector<std::pair<const char*, ckpt::pickle::Value>> AdamW::param_group(bool decays) const {
  return {
      {"betas", ckpt::pickle::Tuple{{config().betas[0], config().betas[1]}}},
      {"eps", config().eps},
      {"weight_decay", decays ? config().weight_decay : 0.0},
      {"amsgrad", false},
      {"maximize", false},
      {"foreach", ckpt::pickle::None{}},
      {"capturable", false},
      {"differentiable", false},
      {"fused", ckpt::pickle::None{}},
      {"decoupled_weight_decay", true},
  };
}

void AdamW::apply(Batch& batch, double lr) const {
  // The kernel reads the number of this step, counted from 1.
  const at::Tensor step =
      at::full({}, static_cast<double>(batch.steps), batch.parameters.front().options().dtype(at::kFloat));
  const std::vector<at::Tensor> steps(batch.parameters.size(), step);
  at::_fused_adamw_(batch.parameters, batch.gradients, batch.tensors[0], batch.tensors[1], {}, steps, lr,
                    config().betas[0], config().betas[1], batch.decays ? config().weight_decay : 0,
                    config().eps, /*amsgrad=*/false, /*maximize=*/false);
}

}  // namespace accel::train
