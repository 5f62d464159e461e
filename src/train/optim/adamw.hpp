#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/config.hpp"
#include "train/fsdp/flat_buffer.hpp"

namespace accel::train {

/// AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019) as torch.optim.AdamW computes
/// it, on flat shards: one fused call for the elements with weight decay and one for those without. State
/// exists only for the shard.
class AdamW {
 public:
  struct State {
    FlatBuffer* buffer = nullptr;
    at::Tensor exp_avg;     ///< [shard_numel]
    at::Tensor exp_avg_sq;  ///< [shard_numel]
  };

  /// `shard` is the number of this rank's shard of each buffer that is cut.
  AdamW(const core::OptimizerConfig& config, const std::vector<FlatBuffer*>& buffers, int shard);

  /// One step with the gradients that the buffers hold.
  void step(double lr);

  [[nodiscard]] const std::vector<State>& states() const { return states_; }
  [[nodiscard]] std::int64_t steps() const { return steps_; }

 private:
  core::OptimizerConfig config_;
  int shard_;
  std::vector<State> states_;
  std::int64_t steps_ = 0;
};

}  // namespace accel::train
