#include "train/graph/run/module_attention.hpp"

#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/csrc/jit/runtime/custom_operator.h>

namespace accel::train {
namespace {

void module_attention(torch::jit::Stack& stack) {
  AttentionCall call;
  call.enable_gqa = torch::jit::pop(stack).toBool();
  call.scale = torch::jit::pop(stack).toOptional<double>();
  call.is_causal = torch::jit::pop(stack).toBool();
  call.dropout = torch::jit::pop(stack).toDouble();
  call.mask = torch::jit::pop(stack).toOptional<at::Tensor>();
  call.value = torch::jit::pop(stack).toTensor();
  call.key = torch::jit::pop(stack).toTensor();
  call.query = torch::jit::pop(stack).toTensor();
  call.number = torch::jit::pop(stack).toInt();
  const c10::intrusive_ptr<c10::ivalue::Object> self = torch::jit::pop(stack).toObject();
  const AttentionFunction* function = AttentionRegistration::of(*self);
  stack.emplace_back(function == nullptr ? plain_attention(call) : (*function)(call));
}

const torch::jit::RegisterOperators attention_registration({
    torch::jit::Operator("accel::attention(Any self, int number, Tensor query, Tensor key, Tensor value, "
                         "Tensor? attn_mask, float dropout_p, bool is_causal, float? scale, bool enable_gqa) "
                         "-> Tensor",
                         module_attention, c10::AliasAnalysisKind::CONSERVATIVE),
});

}  // namespace

at::Tensor plain_attention(const AttentionCall& call) {
  return at::scaled_dot_product_attention(call.query, call.key, call.value, call.mask, call.dropout,
                                          call.is_causal, call.scale, call.enable_gqa);
}

}  // namespace accel::train
