#include "train/graph/run/module_embedding.hpp"

#include <ATen/ops/embedding.h>
#include <torch/csrc/jit/runtime/custom_operator.h>

#include "base/error.hpp"

namespace accel::train {
namespace {

void module_embedding(torch::jit::Stack& stack) {
  const bool sparse = torch::jit::pop(stack).toBool();
  const bool scales = torch::jit::pop(stack).toBool();
  const c10::IValue padding = torch::jit::pop(stack);
  const at::Tensor indices = torch::jit::pop(stack).toTensor();
  const at::Tensor weight = torch::jit::pop(stack).toTensor();
  const c10::intrusive_ptr<c10::ivalue::Object> self = torch::jit::pop(stack).toObject();
  const std::int64_t padding_index = padding.isNone() ? -1 : padding.toInt();
  const EmbeddingFunction* function = EmbeddingRegistration::of(*self);
  if (function == nullptr) {
    stack.emplace_back(at::embedding(weight, indices, padding_index, scales, sparse));
    return;
  }
  if (scales || sparse) {
    throw Error(ErrorKind::kUsage,
                "an embedding with scale_grad_by_freq or sparse cannot be cut by tensor parallelism")
        .hint("leave it out of the plan, or export the model without these options");
  }
  stack.emplace_back((*function)(weight, indices, padding_index));
}

const torch::jit::RegisterOperators embedding_registration({
    torch::jit::Operator("accel::embedding(Any self, Tensor weight, Tensor indices, int? padding_idx, bool "
                         "scale_grad_by_freq, bool sparse) -> Tensor",
                         module_embedding, c10::AliasAnalysisKind::CONSERVATIVE),
});

}  // namespace

}  // namespace accel::train
