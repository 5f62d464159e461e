#include "train/optim/optimizer.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstddef>

namespace accel::train {

Optimizer::Optimizer(OptimizerPlan plan, const std::vector<FlatBuffer*>& buffers, int shard,
                     const MeshGroups* groups)
    : plan_(std::move(plan)), shard_(shard) {
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    FlatBuffer* const buffer = buffers[i];
    const FlatLayout& layout = buffer->layout();
    for (const GroupRange& range : group_ranges(layout)) {
      State& state = states_.emplace_back();
      state.buffer = buffer;
      state.buffer_index = i;
      state.range = range;
      state.in_shard = range.in_shard(layout, layout.is_replicated() ? 0 : shard);
      for (const StateTensor& tensor : plan_.groups()[range.group].tensors) {
        const std::int64_t numel = numel_on_rank(tensor, layout, range, layout.is_replicated() ? 0 : shard);
        const auto options = buffer->shard().options();
        state.tensors.push_back(at::full(
            {numel}, tensor.initial, tensor.form == StateForm::kCodes ? options.dtype(at::kByte) : options));
      }
      state.steps.resize(range.end - range.first);
    }
  }
  collective_rules_ = collective_rules(plan_, states_, shard, groups);
}

void Optimizer::restore_steps(std::int64_t steps, std::vector<std::vector<std::int64_t>> parameter_steps) {
  steps_ = steps;
  for (std::size_t i = 0; i < states_.size(); ++i) states_[i].steps = std::move(parameter_steps.at(i));
}

std::vector<std::string> Optimizer::unused(bool dampened) const {
  std::vector<std::string> names;
  for (const State& state : states_) {
    if (dampened && plan_.groups()[state.range.group].options.dampening.value_or(0) == 0) continue;
    for (std::size_t i = state.range.first; i < state.range.end; ++i) {
      if (state.steps_of(i) == 0) names.push_back(state.buffer->layout().parameters[i].spec.fqns.front());
    }
  }
  return names;
}

std::int64_t Optimizer::parameter_steps() const {
  std::int64_t most = 0;
  for (const State& state : states_) {
    for (const std::int64_t steps : state.steps) most = std::max(most, steps);
  }
  return most;
}

void Optimizer::step(double scale) {
  std::vector<FlatBuffer*> buffers;
  for (const State& state : states_) {
    if (buffers.empty() || buffers.back() != state.buffer) buffers.push_back(state.buffer);
  }
  step(scale, gradient_presence(buffers));
}

void Optimizer::step(double scale, const GradientPresence& presence) {
  const at::NoGradGuard no_grad;
  ++steps_;
  Batches batches;
  for (State& state : states_) {
    const std::vector<bool>& has_gradient = presence.at(state.buffer_index);
    for (std::size_t i = 0; i < state.steps.size(); ++i)
      state.steps[i] += has_gradient.at(state.range.first + i) ? 1 : 0;
    if (before_change_ && state.changes_with(has_gradient)) before_change_(state);
    if (update_rule(plan_.groups()[state.range.group]) != nullptr) add_parts(state, has_gradient, batches);
  }
  for (auto& [key, batch] : batches) {
    const OptimizerGroup& group = plan_.groups()[std::get<0>(key)];
    update_rule(group)(group, batch, group.lr * scale);
  }
  for (const auto& rule : collective_rules_) rule->step(scale, presence);
}

void Optimizer::add_parts(const State& state, const std::vector<bool>& has_gradient, Batches& batches) const {
  struct Part {
    ElementRange range;  ///< Neighbouring parameters and the padding behind them, in this rank's shard.
    std::int64_t steps = 0;
  };
  const FlatLayout& layout = state.buffer->layout();
  const ElementRange shard = layout.shard_range(layout.is_replicated() ? 0 : shard_);
  std::vector<Part> parts;
  for (std::size_t i = state.range.first; i < state.range.end; ++i) {
    if (!has_gradient[i]) continue;
    const std::int64_t end =
        i + 1 < layout.parameters.size() ? layout.parameters[i + 1].offset : layout.numel();
    const ElementRange range{
        std::clamp(layout.parameters[i].offset - shard.begin, std::int64_t{0}, shard.size()),
        std::clamp(end - shard.begin, std::int64_t{0}, shard.size())};
    if (range.size() == 0) continue;
    const Part part{range, state.steps_of(i)};
    if (!parts.empty() && parts.back().range.end == range.begin && parts.back().steps == part.steps) {
      parts.back().range.end = range.end;
    } else {
      parts.push_back(part);
    }
  }
  for (const Part& part : parts) {
    const auto cut = [&](const at::Tensor& flat, std::int64_t first, std::int64_t each = 1) {
      return flat.narrow(0, (part.range.begin - first) / each, part.range.size() / each);
    };
    const std::vector<StateTensor>& tensors = plan_.groups()[state.range.group].tensors;
    const at::Tensor& shard_tensor = state.buffer->shard();
    UpdateBatch& batch =
        batches[{state.range.group, part.steps, shard_tensor.scalar_type(), shard_tensor.device().type()}];
    batch.steps = part.steps;
    batch.parameters.push_back(cut(state.buffer->shard(), 0));
    batch.gradients.push_back(cut(state.buffer->gradient(), 0));
    batch.tensors.resize(state.tensors.size());
    for (std::size_t i = 0; i < state.tensors.size(); ++i)
      batch.tensors[i].push_back(cut(state.tensors[i], state.in_shard.begin, tensors[i].elems_each()));
  }
}

}  // namespace accel::train
