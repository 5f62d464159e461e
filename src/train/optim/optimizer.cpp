#include "train/optim/optimizer.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "base/error.hpp"
#include "train/optim/adamw.hpp"

namespace accel::train {

Optimizer::Optimizer(const config::OptimizerConfig& config, const std::vector<FlatBuffer*>& buffers,
                     int shard)
    : config_(config), plan_(optimizer_plan(config.type)), shard_(shard) {
  for (FlatBuffer* buffer : buffers) {
    State& state = states_.emplace_back();
    state.buffer = buffer;
    for (std::size_t i = 0; i < plan_.tensors.size(); ++i)
      state.tensors.push_back(at::zeros_like(buffer->shard()));
    state.steps.resize(buffer->layout().parameters.size());
  }
}

void Optimizer::restore_steps(std::int64_t steps, std::vector<std::vector<std::int64_t>> parameter_steps) {
  steps_ = steps;
  for (std::size_t i = 0; i < states_.size(); ++i) states_[i].steps = std::move(parameter_steps.at(i));
}

std::int64_t Optimizer::parameter_steps() const {
  std::int64_t most = 0;
  for (const State& state : states_) {
    for (const std::int64_t steps : state.steps) most = std::max(most, steps);
  }
  return most;
}

void Optimizer::step(double lr) {
  std::vector<FlatBuffer*> buffers;
  for (const State& state : states_) buffers.push_back(state.buffer);
  step(lr, gradient_presence(buffers));
}

void Optimizer::step(double lr, const GradientPresence& presence) {
  const at::NoGradGuard no_grad;
  ++steps_;
  Batches batches;
  for (std::size_t i = 0; i < states_.size(); ++i) {
    State& state = states_[i];
    const std::vector<bool>& has_gradient = presence.at(i);
    for (std::size_t at = 0; at < state.steps.size(); ++at) state.steps[at] += has_gradient.at(at) ? 1 : 0;
    add_parts(state, has_gradient, batches);
  }
  for (auto& [key, batch] : batches) apply(batch, lr);
}

void Optimizer::add_parts(const State& state, const std::vector<bool>& has_gradient, Batches& batches) const {
  struct Part {
    ElementRange range;  ///< Neighbouring parameters and the padding behind them, in this rank's shard.
    bool decays = false;
    std::int64_t steps = 0;
  };
  const FlatLayout& layout = state.buffer->layout();
  const ElementRange shard = layout.shard_range(layout.is_replicated() ? 0 : shard_);
  std::vector<Part> parts;
  for (std::size_t i = 0; i < layout.parameters.size(); ++i) {
    if (!has_gradient[i]) continue;
    const std::int64_t end =
        i + 1 < layout.parameters.size() ? layout.parameters[i + 1].offset : layout.numel();
    const ElementRange range{
        std::clamp(layout.parameters[i].offset - shard.begin, std::int64_t{0}, shard.size()),
        std::clamp(end - shard.begin, std::int64_t{0}, shard.size())};
    if (range.size() == 0) continue;
    const Part part{range, layout.parameters[i].spec.decay, state.steps[i]};
    if (!parts.empty() && parts.back().range.end == range.begin && parts.back().decays == part.decays &&
        parts.back().steps == part.steps) {
      parts.back().range.end = range.end;
    } else {
      parts.push_back(part);
    }
  }
  if (before_change_ && !parts.empty()) before_change_(state);
  for (const Part& part : parts) {
    const auto cut = [&](const at::Tensor& flat) {
      return flat.narrow(0, part.range.begin, part.range.size());
    };
    const at::Tensor& shard_tensor = state.buffer->shard();
    Batch& batch =
        batches[{part.decays, part.steps, shard_tensor.scalar_type(), shard_tensor.device().type()}];
    batch.decays = part.decays;
    batch.steps = part.steps;
    batch.parameters.push_back(cut(state.buffer->shard()));
    batch.gradients.push_back(cut(state.buffer->gradient()));
    batch.tensors.resize(state.tensors.size());
    for (std::size_t i = 0; i < state.tensors.size(); ++i) batch.tensors[i].push_back(cut(state.tensors[i]));
  }
}

std::unique_ptr<Optimizer> make_optimizer(const config::OptimizerConfig& config,
                                          const std::vector<FlatBuffer*>& buffers, int shard) {
  if (config.type == "adamw") return std::make_unique<AdamW>(config, buffers, shard);
  throw Error(ErrorKind::kUsage, fmt::format("the optimizer '{}' is not supported", config.type));
}

}  // namespace accel::train
