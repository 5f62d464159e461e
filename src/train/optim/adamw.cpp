#include "train/optim/adamw.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>

#include <algorithm>

namespace accel::train {

AdamW::AdamW(const core::OptimizerConfig& config, const std::vector<FlatBuffer*>& buffers, int shard)
    : config_(config), shard_(shard) {
  for (FlatBuffer* buffer : buffers) {
    states_.push_back({buffer, at::zeros_like(buffer->shard()), at::zeros_like(buffer->shard())});
  }
}

void AdamW::step(double lr) {
  const at::NoGradGuard no_grad;
  ++steps_;
  for (const State& state : states_) {
    const FlatLayout& layout = state.buffer->layout();
    const std::int64_t numel = layout.shard_numel;
    const int shard = layout.is_whole() ? 0 : shard_;
    const std::int64_t split =
        std::clamp<std::int64_t>(layout.decay_end - layout.shard_range(shard).begin, 0, numel);
    const auto update = [&](std::int64_t begin, std::int64_t end, double weight_decay) {
      if (begin == end) return;
      const auto part = [&](const at::Tensor& flat) { return flat.narrow(0, begin, end - begin); };
      // The kernel reads the number of this step, counted from 1.
      const at::Tensor step =
          at::full({}, static_cast<double>(steps_), state.buffer->shard().options().dtype(at::kFloat));
      at::_fused_adamw_({part(state.buffer->shard())}, {part(state.buffer->gradient())},
                        {part(state.exp_avg)}, {part(state.exp_avg_sq)}, {}, {step}, lr, config_.betas[0],
                        config_.betas[1], weight_decay, config_.eps, /*amsgrad=*/false, /*maximize=*/false);
    };
    update(0, split, config_.weight_decay);
    update(split, numel, 0);
  }
}

}  // namespace accel::train
