#include "train/graph/run/module_linear.hpp"

#include <ATen/ops/linear.h>
#include <torch/csrc/jit/runtime/custom_operator.h>

namespace accel::train {
namespace {

void module_linear(torch::jit::Stack& stack) {
  const c10::IValue bias = torch::jit::pop(stack);
  const at::Tensor weight = torch::jit::pop(stack).toTensor();
  const at::Tensor input = torch::jit::pop(stack).toTensor();
  const c10::intrusive_ptr<c10::ivalue::Object> self = torch::jit::pop(stack).toObject();
  const at::Tensor own_bias = bias.isNone() ? at::Tensor() : bias.toTensor();
  const LinearFunction* function = LinearRegistration::of(*self);
  stack.emplace_back(function == nullptr ? at::linear(input, weight, own_bias)
                                         : (*function)(input, weight, own_bias));
}

const torch::jit::RegisterOperators linear_registration({
    torch::jit::Operator("accel::linear(Any self, Tensor input, Tensor weight, Tensor? bias) -> Tensor",
                         module_linear, c10::AliasAnalysisKind::CONSERVATIVE),
});

}  // namespace

}  // namespace accel::train
