#include "train/fsdp/unit.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "plan/step_memory.hpp"
#include "train/graph/tensors.hpp"

namespace accel::train {

class Unit::GradientHook final : public torch::autograd::PostAccumulateGradHook {
 public:
  GradientHook(Unit& unit, FlatBuffer& buffer, std::size_t index)
      : unit_(unit), buffer_(buffer), index_(index) {}
  void operator()(const torch::autograd::Variable& parameter) override {
    at::Tensor leaf = parameter;
    unit_.on_gradient(buffer_, index_, leaf);
  }

 private:
  Unit& unit_;
  FlatBuffer& buffer_;
  std::size_t index_;
};

Unit::Unit(UnitPlan plan, const c10::IValue& module, std::vector<std::unique_ptr<FlatBuffer>> buffers,
           const Options& options, const MeshGroups& groups, StepState& step)
    : plan_(std::move(plan)),
      state_(std::make_shared<ModuleState>(module)),
      buffers_(std::move(buffers)),
      options_(options),
      groups_(groups),
      step_(step),
      kept_(options.kept) {
  // What runs last in forward and first in backward would gain nothing from being freed in between.
  if (plan_.stays_gathered) options_.reshard_after_forward = false;
  if (!plan_.checkpoints) options_.recompute = false;
  if (options_.without_autocast) without_autocast_.emplace(name(), options_.device.type());
  for (const auto& buffer : buffers_) {
    if (!buffer->trainable()) continue;
    trainable_parameters_ += static_cast<std::int64_t>(buffer->parameters().size());
    for (std::size_t i = 0; i < buffer->parameters().size(); ++i) {
      torch::autograd::impl::set_post_acc_grad_hooks(buffer->parameters()[i],
                                                     std::make_unique<GradientHook>(*this, *buffer, i));
    }
  }
}

Unit::~Unit() {
  for (const auto& buffer : buffers_) {
    for (const at::Tensor& parameter : buffer->parameters()) {
      if (buffer->trainable()) torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
    }
  }
}

void Unit::start_unshard() {
  if (step_.wanted == this) step_.wanted = nullptr;
  if (!unsharded_) {
    step_.most_unsharded = std::max(step_.most_unsharded, ++step_.unsharded);
    // Replicas gather apart from each other, and each in its own order, if it must be.
    if (groups_.mesh().shards > 1 && groups_.mesh().replicas == 1)
      step_.collectives.note(CollectiveOrder::Kind::kGather, plan_.module);
  }
  unsharded_ = true;
  for (const auto& buffer : buffers_) buffer->start_unshard(groups_);
}

// At most two gathers are under way: this unit's, which is waited for next, and that one.
void Unit::prefetch(Direction direction) {
  if (step_.recording) return;
  Unit* next = direction == Direction::kForward ? next_in_forward() : next_in_backward();
  if (next == nullptr) return;
  step_.wanted = next;
  if (direction == Direction::kBackward) next->kept_.fetch_next();
  gather_wanted();
}

// What runs again in backward runs in the order of forward, but the unit behind it is not what comes next.
Unit* Unit::next_in_forward() const {
  if (!options_.forward_prefetch || !place_) return nullptr;
  const std::size_t end =
      step_.recomputing.empty() ? step_.order.size() : step_.recomputing.back()->inner_end_;
  return *place_ + 1 < end ? step_.order[*place_ + 1] : nullptr;
}

// A unit that runs again runs those inside it first. Whose backward is done, or never comes as with frozen
// units in front, is not gathered again: nobody would free it before the end.
Unit* Unit::next_in_backward() const {
  if (!options_.backward_prefetch || !end_place_) return nullptr;
  if (options_.recompute && *place_ + 1 < inner_end_) return step_.order[*place_ + 1];
  for (std::size_t i = *end_place_; i-- > 0;) {
    if (step_.ends[i]->awaits_backward()) return step_.ends[i];
  }
  return nullptr;
}

bool Unit::awaits_backward() const { return outputs_ahead_ > 0 && !(in_backward_ && is_backward_done()); }

void Unit::gather_wanted() {
  if (step_.wanted == nullptr || step_.unsharded >= kMostUnsharded) return;
  if (!step_.wanted->unsharded_) ++step_.gathered_ahead;
  step_.wanted->start_unshard();
}

void Unit::unshard(Direction direction) {
  if (direction == Direction::kBackward) kept_.fetch_next();
  start_unshard();
  prefetch(direction);
  RECORD_USER_SCOPE("wait for unit " + name());
  for (const auto& buffer : buffers_) buffer->finish_unshard();
}

void Unit::reshard() {
  if (unsharded_) --step_.unsharded;
  unsharded_ = false;
  for (const auto& buffer : buffers_) buffer->require_unchanged();
  for (const auto& buffer : buffers_) buffer->reshard();
  gather_wanted();
}

void Unit::hook(const at::Tensor& tensor, std::function<void(const at::TensorBase&)> body) {
  const unsigned place = tensor.register_hook(std::move(body));
  if (tensor.is_leaf()) leaf_hooks_.emplace_back(tensor.getIntrusivePtr(), place);
}

void Unit::forget_leaf_hooks() {
  for (const auto& [weak, place] : leaf_hooks_) {
    if (auto tensor = weak.lock()) at::Tensor(std::move(tensor)).remove_hook(place);
  }
  leaf_hooks_.clear();
}

void Unit::begin_micro_step() {
  forget_leaf_hooks();
  depth_ = 0;
  inputs_.clear();
  in_graph_ = false;
  missing_gradients_ = 0;
  missing_inputs_ = 0;
  outputs_ahead_ = 0;
  in_backward_ = false;
}

c10::IValue Unit::cast_argument(const c10::IValue& value) const {
  const auto wants_cast = [&](const at::Tensor& tensor) {
    return tensor.is_floating_point() && tensor.scalar_type() != *options_.argument_dtype;
  };
  bool wanted = false;
  if (options_.argument_dtype)
    for_each_tensor(value, [&](const at::Tensor& tensor) { wanted = wanted || wants_cast(tensor); });
  if (!wanted) return value;
  return map_tensors(value, [&](const at::Tensor& tensor) {
    return wants_cast(tensor) ? tensor.to(*options_.argument_dtype) : tensor;
  });
}

// The loss that a model returns stays as it is: fully_shard would round it, too.
c10::IValue Unit::cast_result(const c10::IValue& value) const {
  if (!options_.result_dtype) return value;
  return map_tensors(value, [&](const at::Tensor& tensor) {
    const bool is_loss = plan_.is_root() && tensor.dim() == 0;
    return tensor.is_floating_point() && !is_loss ? tensor.to(*options_.result_dtype) : tensor;
  });
}

void Unit::before_call(std::span<const c10::IValue> arguments) {
  ++calls_;
  if (step_.recording && !place_) {
    place_ = step_.order.size();
    step_.order.push_back(this);
  }
  if (depth_++ == 0) unshard(Direction::kForward);
  TensorVersions versions;
  if (at::GradMode::is_enabled()) {
    // Through a call that runs again, backward comes by itself, with a gradient for every parameter. How
    // often it comes through a unit inside of one is not known.
    const bool own_backward = depth_ == 1 && (options_.recompute || !step_.recomputing.empty());
    if (!in_graph_ || own_backward) missing_gradients_ += trainable_parameters_;
    in_graph_ = true;
    options_.reduce_late |= !step_.recomputing.empty();
    for (const c10::IValue& argument : arguments) {
      for_each_tensor(argument, [&](const at::Tensor& tensor) {
        versions.emplace_back(tensor, tensor._version());
        if (!tensor.requires_grad()) return;
        ++missing_inputs_;
        hook(tensor, [this](const at::TensorBase&) { on_input_gradient(); });
      });
    }
  }
  inputs_.push_back(std::move(versions));
  if (depth_ == 1 && at::GradMode::is_enabled()) marks_ = state_->marks();
  if (without_autocast_) without_autocast_->before_call(arguments);
}

void Unit::after_call(std::span<const c10::IValue> arguments, const c10::IValue& result) {
  if (without_autocast_) without_autocast_->after_call(arguments, result);
  const TensorVersions inputs = std::move(inputs_.back());
  inputs_.pop_back();
  if (at::GradMode::is_enabled()) {
    for_each_tensor(result, [&](const at::Tensor& output) {
      // An input handed through needs no hook: what comes back through it does not come through this unit.
      const bool is_input = std::any_of(inputs.begin(), inputs.end(), [&](const auto& input) {
        return input.first.is_same(output) && input.second == output._version();
      });
      if (!is_input) unshard_before_backward(output);
    });
    for (const auto& [input, version] : inputs) {
      if (input._version() != version) unshard_before_backward(input);
    }
    unshard_before_backward_of_others(arguments, inputs);
  }
  if (--depth_ > 0) return;
  if (step_.recording && !end_place_) {
    end_place_ = step_.ends.size();
    step_.ends.push_back(this);
    inner_end_ = step_.order.size();
  }
  if (options_.reshard_after_forward || !at::GradMode::is_enabled()) reshard_after_forward();
}

// Of what no backward will need nothing is kept but the shard.
void Unit::reshard_after_forward() {
  Group* keepers = groups_.reshard();
  if (keepers != nullptr && options_.reshard_after_forward && step_.expects_backward) {
    for (const auto& buffer : buffers_) buffer->reshard_to(*keepers);
  }
  reshard();
}

void Unit::before_recompute() {
  step_.recomputing.push_back(this);
  ++depth_;
  unshard(Direction::kBackward);
}

void Unit::after_recompute() {
  step_.recomputing.pop_back();
  --depth_;
}

void Unit::unshard_before_backward(const at::Tensor& output) {
  if (!output.requires_grad()) return;
  ++outputs_ahead_;
  hook(output, [this](const at::TensorBase&) {
    --outputs_ahead_;
    in_backward_ = true;
    unshard(Direction::kBackward);
  });
}

void Unit::unshard_before_backward_of_others(std::span<const c10::IValue> arguments,
                                             const TensorVersions& inputs) {
  const auto is_input = [&](const at::Tensor& tensor) {
    return std::any_of(inputs.begin(), inputs.end(),
                       [&](const auto& input) { return input.first.is_same(tensor); });
  };
  for (const c10::IValue& argument : arguments) {
    for_each_tensor(argument, [&](const at::Tensor& tensor) {
      if (!is_input(tensor)) unshard_before_backward(tensor);
    });
  }
  if (depth_ > 1) return;
  for (const ModuleState::Slot& slot : state_->slots()) {
    for_each_tensor(slot.value(), [&](const at::Tensor& tensor) {
      // An input that is kept has no backward of this unit.
      if (tensor.requires_grad() && !tensor.is_leaf() && !is_marked(tensor, marks_) &&
          !is_marked(tensor, inputs))
        unshard_before_backward(tensor);
    });
  }
  marks_.clear();
}

bool Unit::owns(const at::Tensor& tensor) const {
  // Behind a call inside a call nothing is freed.
  return depth_ == 1 && std::any_of(buffers_.begin(), buffers_.end(),
                                    [&](const auto& buffer) { return buffer->frees_memory_of(tensor); });
}

void Unit::on_gradient(FlatBuffer& buffer, std::size_t index, at::Tensor& parameter) {
  buffer.add_gradient(index, parameter.grad());
  parameter.mutable_grad().reset();
  if (--missing_gradients_ > 0) return;
  if (step_.reduce && !options_.reduce_late) reduce();
  reshard_when_done();
}

void Unit::on_input_gradient() {
  --missing_inputs_;
  reshard_when_done();
}

void Unit::reshard_when_done() {
  if (is_backward_done() && !plan_.is_root()) reshard();
}

void Unit::reduce() {
  for (const auto& buffer : buffers_) {
    if (!buffer->trainable() || buffer->gradient().defined()) continue;
    step_.collectives.note(CollectiveOrder::Kind::kReduce, plan_.module);
    step_.reduces.start(*buffer);
  }
}

void Unit::finish_backward() {
  if (step_.reduce) reduce();
  reshard();
  for (const auto& buffer : buffers_) buffer->drop_kept();
  in_graph_ = false;
  outputs_ahead_ = 0;
  forget_leaf_hooks();
}

}  // namespace accel::train
