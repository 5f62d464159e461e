#include "train/optim/adamw.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace accel::train {

/// Neighbouring parameters and the padding behind them, in elements of this rank's shard.
struct AdamW::Run {
  ElementRange range;
  bool decays = false;
  std::int64_t steps = 0;  ///< The number of steps, including this one.
};

AdamW::AdamW(const config::OptimizerConfig& config, const std::vector<FlatBuffer*>& buffers, int shard)
    : config_(config), shard_(shard) {
  for (FlatBuffer* buffer : buffers) {
    states_.push_back({buffer, at::zeros_like(buffer->shard()), at::zeros_like(buffer->shard()),
                       std::vector<std::int64_t>(buffer->layout().parameters.size(), 0)});
  }
}

void AdamW::go_on_from(std::int64_t steps, std::vector<std::vector<std::int64_t>> parameter_steps) {
  steps_ = steps;
  for (std::size_t i = 0; i < states_.size(); ++i) states_[i].steps = std::move(parameter_steps.at(i));
}

std::int64_t AdamW::parameter_steps() const {
  std::int64_t most = 0;
  for (const State& state : states_) {
    for (const std::int64_t steps : state.steps) most = std::max(most, steps);
  }
  return most;
}

void AdamW::step(double lr) {
  std::vector<FlatBuffer*> buffers;
  for (const State& state : states_) buffers.push_back(state.buffer);
  step(lr, gradient_presence(buffers));
}

void AdamW::step(double lr, const GradientPresence& presence) {
  const at::NoGradGuard no_grad;
  ++steps_;
  for (std::size_t i = 0; i < states_.size(); ++i) {
    State& state = states_[i];
    const std::vector<bool>& has_gradient = presence.at(i);
    for (std::size_t at = 0; at < state.steps.size(); ++at) state.steps[at] += has_gradient.at(at) ? 1 : 0;
    const std::vector<Run> runs = runs_of(state, has_gradient);
    if (before_change_ && !runs.empty()) before_change_(state);
    for (const Run& run : runs) update(state, run, lr);
  }
}

std::vector<AdamW::Run> AdamW::runs_of(const State& state, const std::vector<bool>& has_gradient) const {
  const FlatLayout& layout = state.buffer->layout();
  const ElementRange shard = layout.shard_range(layout.is_replicated() ? 0 : shard_);
  std::vector<Run> runs;
  for (std::size_t i = 0; i < layout.parameters.size(); ++i) {
    if (!has_gradient[i]) continue;
    const std::int64_t end =
        i + 1 < layout.parameters.size() ? layout.parameters[i + 1].offset : layout.numel();
    const ElementRange range{
        std::clamp(layout.parameters[i].offset - shard.begin, std::int64_t{0}, shard.size()),
        std::clamp(end - shard.begin, std::int64_t{0}, shard.size())};
    if (range.size() == 0) continue;
    const Run run{range, layout.parameters[i].spec.decay, state.steps[i]};
    if (!runs.empty() && runs.back().range.end == range.begin && runs.back().decays == run.decays &&
        runs.back().steps == run.steps) {
      runs.back().range.end = range.end;
    } else {
      runs.push_back(run);
    }
  }
  return runs;
}

void AdamW::update(const State& state, const Run& run, double lr) const {
  const auto part = [&](const at::Tensor& flat) { return flat.narrow(0, run.range.begin, run.range.size()); };
  // The kernel reads the number of this step, counted from 1.
  const at::Tensor step =
      at::full({}, static_cast<double>(run.steps), state.buffer->shard().options().dtype(at::kFloat));
  at::_fused_adamw_({part(state.buffer->shard())}, {part(state.buffer->gradient())}, {part(state.exp_avg)},
                    {part(state.exp_avg_sq)}, {}, {step}, lr, config_.betas[0], config_.betas[1],
                    run.decays ? config_.weight_decay : 0, config_.eps, /*amsgrad=*/false,
                    /*maximize=*/false);
}

}  // namespace accel::train
