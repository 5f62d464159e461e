#include "train/graph/run/module_embedding.hpp"

#include <ATen/ops/embedding.h>
#include <torch/csrc/jit/runtime/custom_operator.h>

#include <utility>

#include "base/error.hpp"

namespace accel::train {
namespace {

using EmbeddingsByObject = std::unordered_map<const c10::ivalue::Object*, EmbeddingFunction>;

EmbeddingsByObject& embeddings_by_object() {
  static EmbeddingsByObject table;
  return table;
}

void module_embedding(torch::jit::Stack& stack) {
  const bool sparse = torch::jit::pop(stack).toBool();
  const bool scales = torch::jit::pop(stack).toBool();
  const c10::IValue padding = torch::jit::pop(stack);
  const at::Tensor indices = torch::jit::pop(stack).toTensor();
  const at::Tensor weight = torch::jit::pop(stack).toTensor();
  const c10::intrusive_ptr<c10::ivalue::Object> self = torch::jit::pop(stack).toObject();
  const std::int64_t padding_index = padding.isNone() ? -1 : padding.toInt();
  const auto found = embeddings_by_object().find(self.get());
  if (found == embeddings_by_object().end()) {
    stack.emplace_back(at::embedding(weight, indices, padding_index, scales, sparse));
    return;
  }
  if (scales || sparse) {
    throw Error(ErrorKind::kUsage,
                "an embedding with scale_grad_by_freq or sparse cannot be cut by tensor parallelism")
        .hint("leave it out of the plan, or export the model without these options");
  }
  stack.emplace_back(found->second(weight, indices, padding_index));
}

const torch::jit::RegisterOperators embedding_registration({
    torch::jit::Operator("accel::embedding(Any self, Tensor weight, Tensor indices, int? padding_idx, bool "
                         "scale_grad_by_freq, bool sparse) -> Tensor",
                         module_embedding, c10::AliasAnalysisKind::CONSERVATIVE),
});

}  // namespace

EmbeddingRegistration::EmbeddingRegistration(EmbeddingsByObject functions) {
  if (!embeddings_by_object().empty())
    throw Error(ErrorKind::kFailure, "this process has a model with embeddings of its own already");
  embeddings_by_object() = std::move(functions);
}

EmbeddingRegistration::~EmbeddingRegistration() { embeddings_by_object().clear(); }

}  // namespace accel::train
