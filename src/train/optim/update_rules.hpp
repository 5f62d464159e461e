#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "ckpt/pickle/value.hpp"
#include "plan/layout/optimizer_plan.hpp"
#include "train/c10d/mesh_groups.hpp"
#include "train/optim/gradient_presence.hpp"
#include "train/optim/optimizer_state.hpp"

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

/// How an optimizer changes parameters of which it needs more than a rank's part.
class CollectiveRule {
 public:
  CollectiveRule() = default;
  CollectiveRule(const CollectiveRule&) = delete;
  CollectiveRule& operator=(const CollectiveRule&) = delete;
  virtual ~CollectiveRule() = default;

  /// Makes one step of all parameters of its type. `scale` is the factor of the learning rates. The steps of
  /// the states count this one. Collective.
  virtual void step(double scale, const GradientPresence& presence) = 0;
};

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

/// AdamW whose moments have 8 bits: Dettmers et al., "8-bit Optimizers via Block-wise Quantization", 2022, by
/// the operations of torchao.optim.AdamW8bit. Codes and scales of whole blocks are in the batch, or, for
/// small parameters, moments in float32.
void update_adamw8bit(const OptimizerGroup& group, UpdateBatch& batch, double lr);

/// The rule of the group's type; nullptr if the type has a CollectiveRule.
UpdateRule update_rule(const OptimizerGroup& group);

/// The collective rules of the types of `states`, in an order that is the same on all ranks. `shard` is the
/// number of this rank's shard. `groups` may be null if nothing is sharded. All must outlive the rules.
std::vector<std::unique_ptr<CollectiveRule>> collective_rules(const OptimizerPlan& plan,
                                                              std::vector<OptimizerState>& states, int shard,
                                                              const MeshGroups* groups);

/// The entries of torch's param_group for a group, beside `params`, `lr` and `initial_lr`. Lion's are those
/// of its authors' program.
std::vector<std::pair<const char*, ckpt::pickle::Value>> param_group(const OptimizerGroup& group);

}  // namespace accel::train
