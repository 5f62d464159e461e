#include "train/fsdp/call_outputs.hpp"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "train/graph/tensors.hpp"

namespace accel::train {

void CallOutputs::begin(std::span<const c10::IValue> arguments, bool is_outermost) {
  ModuleState::TensorVersions& inputs = inputs_.emplace_back();
  if (!at::GradMode::is_enabled()) return;
  for (const c10::IValue& argument : arguments) {
    for_each_tensor(argument, [&](const at::Tensor& tensor) {
      inputs.emplace_back(tensor, static_cast<std::uint32_t>(tensor._version()));
    });
  }
  if (is_outermost) attributes_ = state_->tensor_versions();
}

std::vector<at::Tensor> CallOutputs::end(std::span<const c10::IValue> arguments, const c10::IValue& result,
                                         bool is_outermost) {
  const ModuleState::TensorVersions inputs = std::move(inputs_.back());
  inputs_.pop_back();
  std::vector<at::Tensor> outputs;
  if (!at::GradMode::is_enabled()) return outputs;
  for_each_tensor(result, [&](const at::Tensor& tensor) {
    // An input that is returned unchanged has no backward in this unit.
    if (!contains(inputs, tensor)) outputs.push_back(tensor);
  });
  for (const auto& [input, version] : inputs) {
    if (input._version() != version) outputs.push_back(input);
  }
  const auto is_input = [&](const at::Tensor& tensor) {
    return std::any_of(inputs.begin(), inputs.end(),
                       [&](const auto& input) { return input.first.is_same(tensor); });
  };
  for (const c10::IValue& argument : arguments) {
    for_each_tensor(argument, [&](const at::Tensor& tensor) {
      if (!is_input(tensor)) outputs.push_back(tensor);
    });
  }
  if (is_outermost) {
    add_attributes(outputs, inputs);
    attributes_.clear();
  }
  return outputs;
}

void CallOutputs::add_attributes(std::vector<at::Tensor>& outputs,
                                 const ModuleState::TensorVersions& inputs) const {
  for (const ModuleState::Slot& slot : state_->slots()) {
    for_each_tensor(slot.value(), [&](const at::Tensor& tensor) {
      // An input that is kept has no backward in this unit.
      if (tensor.requires_grad() && !tensor.is_leaf() && !contains(attributes_, tensor) &&
          !contains(inputs, tensor))
        outputs.push_back(tensor);
    });
  }
}

void CallOutputs::reset() {
  inputs_.clear();
  attributes_.clear();
}

}  // namespace accel::train
