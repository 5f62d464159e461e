#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/config/config.hpp"
#include "train/fsdp/flat_buffer.hpp"
#include "train/optim/gradient_presence.hpp"

namespace accel::train {

/// AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019) as torch.optim.AdamW computes
/// it, on flat shards: one fused call for each run of parameters with equal weight decay and as many steps,
/// which are two where every parameter has a gradient in every step. State exists only for the shard.
class AdamW {
 public:
  struct State {
    FlatBuffer* buffer = nullptr;
    at::Tensor exp_avg;     ///< [shard_numel]
    at::Tensor exp_avg_sq;  ///< [shard_numel]
    /// Of each parameter of the layout, on whatever rank it lies: in how many steps it had a gradient.
    std::vector<std::int64_t> steps;
  };

  /// `shard` is the number of this rank's shard of each buffer that is cut.
  AdamW(const core::OptimizerConfig& config, const std::vector<FlatBuffer*>& buffers, int shard);

  /// One step with the gradients that the buffers hold. Parameters that `presence`, which is of the same
  /// buffers, has as without one stay as they are, and so does their state.
  void step(double lr, const GradientPresence& presence);
  /// With what this rank's backward left; right where that is all ranks'.
  void step(double lr);

  [[nodiscard]] const std::vector<State>& states() const { return states_; }
  /// Those of the optimizer: a parameter may have had fewer.
  [[nodiscard]] std::int64_t steps() const { return steps_; }

 private:
  struct Run;
  [[nodiscard]] std::vector<Run> runs_of(const State& state, const std::vector<bool>& has_gradient) const;
  void update(const State& state, const Run& run, double lr) const;

  core::OptimizerConfig config_;
  int shard_;
  std::vector<State> states_;
  std::int64_t steps_ = 0;
};

}  // namespace accel::train
