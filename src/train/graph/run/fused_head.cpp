#include "train/graph/run/fused_head.hpp"

#include <ATen/ops/linear.h>
#include <torch/csrc/jit/runtime/custom_operator.h>

#include <utility>

namespace accel::train {
namespace {

const HeadFunction*& head_of_thread() {
  thread_local const HeadFunction* head = nullptr;
  return head;
}

void fused_head(torch::jit::Stack& stack) {
  const c10::IValue bias = torch::jit::pop(stack);
  const at::Tensor weight = torch::jit::pop(stack).toTensor();
  const at::Tensor hidden = torch::jit::pop(stack).toTensor();
  const at::Tensor own_bias = bias.isNone() ? at::Tensor() : bias.toTensor();
  const HeadFunction* head = head_of_thread();
  at::Tensor result = head == nullptr ? at::Tensor() : (*head)(hidden, weight, own_bias);
  stack.emplace_back(result.defined() ? std::move(result) : at::linear(hidden, weight, own_bias));
}

const torch::jit::RegisterOperators head_registration({
    torch::jit::Operator("accel::fused_head(Tensor hidden, Tensor weight, Tensor? bias) -> Tensor",
                         fused_head, c10::AliasAnalysisKind::CONSERVATIVE),
});

}  // namespace

HeadScope::HeadScope(const HeadFunction& head) : before_(std::exchange(head_of_thread(), &head)) {}

HeadScope::~HeadScope() { head_of_thread() = before_; }

}  // namespace accel::train
