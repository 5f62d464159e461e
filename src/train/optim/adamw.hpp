#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "core/config/config.hpp"
#include "train/fsdp/flat_buffer.hpp"
#include "train/optim/gradient_presence.hpp"

namespace accel::train {

/// AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019) as torch.optim.AdamW computes
/// it, on flat shards. There is one fused call for each run of parameters with equal weight decay and an
/// equal number of steps, so two if every parameter has a gradient in every step. State exists only for the
/// shard.
class AdamW {
 public:
  struct State {
    FlatBuffer* buffer = nullptr;
    at::Tensor exp_avg;     ///< The first moment, [shard_numel].
    at::Tensor exp_avg_sq;  ///< The second moment, [shard_numel].
    /// The number of steps in which each parameter of the layout had a gradient, including parameters of
    /// which this rank has no part.
    std::vector<std::int64_t> steps;
  };

  /// `shard` is the number of this rank's shard in each buffer that is sharded.
  AdamW(const config::OptimizerConfig& config, const std::vector<FlatBuffer*>& buffers, int shard);

  /// Makes one step with the gradients that the buffers hold. `presence` is for the same buffers. Parameters
  /// that have no gradient according to it keep their values and their state.
  void step(double lr, const GradientPresence& presence);
  /// Makes one step with the presence of gradients on this rank, which must be the same on all ranks.
  void step(double lr);

  [[nodiscard]] const std::vector<State>& states() const { return states_; }
  /// Sets the number of steps, and those of each parameter of each of states(), for a run that goes on. The
  /// caller has filled the tensors of states().
  void go_on_from(std::int64_t steps, std::vector<std::vector<std::int64_t>> parameter_steps);
  /// Sets what step() calls before it changes the shard and the moments of a state; may be empty.
  void call_before_change(std::function<void(const State&)> call) { before_change_ = std::move(call); }
  /// The number of steps of the optimizer. A parameter may have had fewer.
  [[nodiscard]] std::int64_t steps() const { return steps_; }
  /// The number of steps of the parameter that has had the most.
  [[nodiscard]] std::int64_t parameter_steps() const;

 private:
  struct Run;
  [[nodiscard]] std::vector<Run> runs_of(const State& state, const std::vector<bool>& has_gradient) const;
  void update(const State& state, const Run& run, double lr) const;

  config::OptimizerConfig config_;
  int shard_;
  std::vector<State> states_;
  std::int64_t steps_ = 0;
  std::function<void(const State&)> before_change_;
};

}  // namespace accel::train
