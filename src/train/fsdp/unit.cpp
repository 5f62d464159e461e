#include "train/fsdp/unit.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "base/files/flight_record.hpp"
#include "train/graph/tensors.hpp"

namespace accel::train {

namespace {

std::int64_t trainable_parameters(std::span<const std::unique_ptr<FlatBuffer>> buffers) {
  std::size_t count = 0;
  for (const auto& buffer : buffers) count += buffer->trainable() ? buffer->parameters().size() : 0;
  return static_cast<std::int64_t>(count);
}

/// Gradients of fewer numbers may be equal on several ranks by chance, in 16 bits.
constexpr std::int64_t kFewest = 16;

}  // namespace

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
      activations_(options.activation_storage),
      outputs_(state_),
      backward_(trainable_parameters(buffers_)) {
  // A unit that runs last in forward and first in backward gains nothing from being freed in between.
  if (plan_.stays_gathered) options_.reshard_after_forward = false;
  if (!plan_.checkpoints) options_.recompute = false;
  if (options_.without_autocast) without_autocast_.emplace(name(), options_.device.type());
  for (const auto& buffer : buffers_) {
    if (!buffer->trainable()) continue;
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
  // Each replica may gather in an order of its own.
  if (step_.prefetch.on_unshard(*this) && groups_.mesh().shards() > 1 && groups_.mesh().replicas() == 1)
    step_.collectives.note(CollectiveOrder::Kind::kGather, plan_.module);
  const flight::Label label(flight_name_);
  Gathers gathers;
  for (const auto& buffer : buffers_) buffer->start_unshard(groups_, gathers);
  gathers.start();
}

// The gathers under way are that of this unit, which is waited for next, and those of units ahead.
void Unit::unshard(Direction direction) {
  if (direction == Direction::kBackward) activations_.fetch_next();
  start_unshard();
  if (direction == Direction::kBackward) {
    if (options_.backward_prefetch) step_.prefetch.prefetch_backward(*this, options_.recompute);
  } else if (options_.forward_prefetch) {
    step_.prefetch.prefetch_forward(*this, step_.recomputing.empty() ? nullptr : step_.recomputing.back());
  }
  RECORD_USER_SCOPE("wait for unit " + name());
  for (const auto& buffer : buffers_) buffer->finish_unshard();
}

void Unit::reshard() {
  step_.prefetch.on_reshard(*this);
  for (const auto& buffer : buffers_) buffer->require_unchanged();
  for (const auto& buffer : buffers_) buffer->reshard();
  step_.prefetch.gather_candidates();
}

void Unit::begin_micro_batch() {
  hooks_.remove_from_leaves();
  depth_ = 0;
  flight_calls_.clear();
  outputs_.reset();
  backward_.reset();
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

// The loss that a model, or its fused head, returns is not cast: fully_shard would round it.
c10::IValue Unit::cast_result(const c10::IValue& value) const {
  if (!options_.result_dtype) return value;
  return map_tensors(value, [&](const at::Tensor& tensor) {
    const bool is_loss = (plan_.is_root() || options_.returns_loss) && tensor.dim() == 0;
    return tensor.is_floating_point() && !is_loss ? tensor.to(*options_.result_dtype) : tensor;
  });
}

void Unit::before_call(std::span<const c10::IValue> arguments) {
  ++calls_;
  step_.prefetch.begin_call(*this);
  const bool is_outermost = depth_++ == 0;
  if (is_outermost) unshard(Direction::kForward);
  if (at::GradMode::is_enabled()) {
    // A recomputed call has a backward of its own, with a gradient for every parameter. How often backward
    // comes through a unit inside a recomputed one is not known.
    backward_.on_call(is_outermost && (options_.recompute || !step_.recomputing.empty()));
    options_.reduce_late |= !step_.recomputing.empty();
    hook_inputs(arguments);
  }
  outputs_.begin(arguments, is_outermost);
  if (without_autocast_) without_autocast_->before_call(arguments);
  const flight::Label label(flight_name_);
  flight_calls_.push_back(
      flight::begin(step_.recomputing.empty() ? FlightOp::kForward : FlightOp::kRecompute));
}

void Unit::after_call(std::span<const c10::IValue> arguments, const c10::IValue& result) {
  flight::end(flight_calls_.back());
  flight_calls_.pop_back();
  if (without_autocast_) without_autocast_->after_call(arguments, result);
  const bool is_outermost = depth_ == 1;
  for (const at::Tensor& output : outputs_.end(arguments, result, is_outermost)) hook_output(output);
  --depth_;
  if (!is_outermost) return;
  if (step_.on_result) step_.on_result(name(), result);
  step_.prefetch.end_call(*this);
  if (options_.reshard_after_forward || !at::GradMode::is_enabled()) reshard_after_forward();
}

void Unit::hook_inputs(std::span<const c10::IValue> arguments) {
  for (const c10::IValue& argument : arguments) {
    for_each_tensor(argument, [&](const at::Tensor& tensor) {
      if (!tensor.requires_grad()) return;
      backward_.on_hooked_input();
      hooks_.add(tensor, [this](const at::TensorBase&) {
        backward_.on_input_gradient();
        reshard_when_done();
      });
    });
  }
}

void Unit::hook_output(const at::Tensor& output) {
  if (!output.requires_grad()) return;
  backward_.on_hooked_output();
  hooks_.add(output, [this](const at::TensorBase&) {
    backward_.on_output_gradient();
    unshard(Direction::kBackward);
  });
}

// The reshard group keeps its shard only if a backward follows.
void Unit::reshard_after_forward() {
  Group* reshard_group = groups_.reshard();
  if (reshard_group != nullptr && options_.reshard_after_forward && step_.expects_backward) {
    for (const auto& buffer : buffers_) buffer->reshard_to(*reshard_group);
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

bool Unit::owns(const at::Tensor& tensor) const {
  // After a call inside another call of the unit nothing is freed.
  return depth_ == 1 && std::any_of(buffers_.begin(), buffers_.end(),
                                    [&](const auto& buffer) { return buffer->frees_memory_of(tensor); });
}

bool Unit::require_parts(const ParameterSpec& parameter, const at::Tensor& own) const {
  if (own.numel() < kFewest) return true;
  // All ranks see the same two tensors, and go on or end together.
  const at::ScalarType dtype = own.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor largest = own.to(dtype).clone(at::MemoryFormat::Contiguous);
  const at::Tensor least = largest.neg();
  groups_.tp().all_reduce_max(largest).wait();
  groups_.tp().all_reduce_max(least).wait();
  if (largest.ne(least.neg()).any().item<bool>()) return true;
  if (!largest.any().item<bool>()) return false;
  throw Error(ErrorKind::kUsage,
              fmt::format("the gradient of '{}' is the same on the {} ranks of tensor parallelism, and their "
                          "sum would be {} times the gradient",
                          parameter.fqns.front(), groups_.tp().size(), groups_.tp().size()))
      .hint(
          "take the style replicated_with_grad_allreduce from its module: it is for what is whole between "
          "linears that are cut");
}

void Unit::on_gradient(FlatBuffer& buffer, std::size_t index, at::Tensor& parameter) {
  // The gradient is freed before its sum over the ranks takes memory.
  add_gradient(buffer, index, parameter.grad());
  parameter.mutable_grad().reset();
  if (!backward_.on_parameter_gradient()) return;
  if (step_.reduce && !options_.reduce_late) reduce();
  reshard_when_done();
}

void Unit::add_gradient(FlatBuffer& buffer, std::size_t index, const at::Tensor& gradient) {
  const ParameterSpec& spec = buffer.layout().parameters[index].spec;
  if (!spec.sums_gradient) return buffer.add_gradient(index, gradient);
  // A part of the gradient of a micro-batch is summed at once. The accumulated one would be summed again.
  const at::Tensor sum = gradient.clone(at::MemoryFormat::Contiguous);
  groups_.tp().all_reduce_sum(sum).wait();
  const bool is_known = partial_.contains({&buffer, index});
  if (!is_known && require_parts(spec, gradient)) partial_.insert({&buffer, index});
  buffer.add_gradient(index, sum);
}

void Unit::reshard_when_done() {
  if (backward_.is_done() && !plan_.is_root()) reshard();
}

void Unit::reduce() {
  for (const auto& buffer : buffers_) {
    if (!buffer->trainable() || buffer->gradient().defined()) continue;
    step_.collectives.note(CollectiveOrder::Kind::kReduce, plan_.module);
    const flight::Label label(flight_name_);
    step_.reduces.start(*buffer);
  }
}

void Unit::finish_backward() {
  if (step_.reduce) reduce();
  reshard();
  for (const auto& buffer : buffers_) buffer->drop_group_shard();
  backward_.finish();
  hooks_.remove_from_leaves();
}

}  // namespace accel::train
