#include "train/graph/run/module_linear.hpp"

#include <ATen/ops/linear.h>
#include <torch/csrc/jit/runtime/custom_operator.h>

#include <utility>

#include "base/error.hpp"

namespace accel::train {
namespace {

using FunctionsByObject = std::unordered_map<const c10::ivalue::Object*, LinearFunction>;

FunctionsByObject& functions_by_object() {
  static FunctionsByObject table;
  return table;
}

void module_linear(torch::jit::Stack& stack) {
  const c10::IValue bias = torch::jit::pop(stack);
  const at::Tensor weight = torch::jit::pop(stack).toTensor();
  const at::Tensor input = torch::jit::pop(stack).toTensor();
  const c10::intrusive_ptr<c10::ivalue::Object> self = torch::jit::pop(stack).toObject();
  const at::Tensor own_bias = bias.isNone() ? at::Tensor() : bias.toTensor();
  const auto found = functions_by_object().find(self.get());
  stack.emplace_back(found == functions_by_object().end() ? at::linear(input, weight, own_bias)
                                                          : found->second(input, weight, own_bias));
}

const torch::jit::RegisterOperators linear_registration({
    torch::jit::Operator("accel::linear(Any self, Tensor input, Tensor weight, Tensor? bias) -> Tensor",
                         module_linear, c10::AliasAnalysisKind::CONSERVATIVE),
});

}  // namespace

LinearRegistration::LinearRegistration(FunctionsByObject functions) {
  if (!functions_by_object().empty())
    throw Error(ErrorKind::kFailure, "this process has a model with linears of its own already");
  functions_by_object() = std::move(functions);
}

LinearRegistration::~LinearRegistration() { functions_by_object().clear(); }

}  // namespace accel::train
