#pragma once

#include <utility>
#include <vector>

#include "train/optim/optimizer.hpp"

namespace accel::train {

/// AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019) as torch.optim.AdamW computes
/// it, with one fused call for all parts of equal weight decay and steps: two calls a step if every parameter
/// has a gradient in every step.
class AdamW final : public Optimizer {
 public:
  using Optimizer::Optimizer;

  [[nodiscard]] std::vector<std::pair<const char*, ckpt::pickle::Value>> param_group(
      bool decays) const override;

 protected:
  void apply(Batch& batch, double lr) const override;
};

}  // namespace accel::train
