#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "ckpt/pickle/value.hpp"
#include "plan/optimizer_plan.hpp"

namespace accel::train {

/// Parts of this rank's shards that are changed together. They belong to one group and one device, and their
/// parameters have had an equal number of steps. Part i of each list belongs to part i of the others.
struct UpdateBatch {
  std::int64_t steps = 0;  ///< The number of steps, including this one.
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> gradients;
  std::vector<std::vector<at::Tensor>> tensors;  ///< For each tensor of the group.
};

/// How an optimizer changes the parameters and the tensors of a batch, element by element.
using UpdateRule = void (*)(const OptimizerGroup& group, UpdateBatch& batch, double lr);

/// torch.optim.AdamW and, with weight decay added to the gradient instead, torch.optim.Adam, by torch's fused
/// kernels: Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019.
void update_adam(const OptimizerGroup& group, UpdateBatch& batch, double lr);
/// torch.optim.SGD, by its fused kernel.
void update_sgd(const OptimizerGroup& group, UpdateBatch& batch, double lr);
/// torch.optim.Adagrad, by its fused kernel.
void update_adagrad(const OptimizerGroup& group, UpdateBatch& batch, double lr);
/// torch.optim.RMSprop, by the operations that it applies to one tensor.
void update_rmsprop(const OptimizerGroup& group, UpdateBatch& batch, double lr);
/// Lion: Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023, algorithm 2.
void update_lion(const OptimizerGroup& group, UpdateBatch& batch, double lr);

/// The rule of the group's type; nullptr if it changes whole matrices (muon.hpp).
UpdateRule update_rule(const OptimizerGroup& group);

/// The entries of torch's param_group for a group, beside `params`, `lr` and `initial_lr`. Lion's are those
/// of its authors' program.
std::vector<std::pair<const char*, ckpt::pickle::Value>> param_group(const OptimizerGroup& group);

}  // namespace accel::train
