#include "train/graph/passes/replace_embeddings.hpp"

#include <torch/csrc/jit/ir/constants.h>

#include "train/graph/passes/own_weight.hpp"
#include "train/graph/run/module_embedding.hpp"

namespace accel::train {
namespace {

using torch::jit::Node;
using torch::jit::Value;

/// Whether the node calls torch.nn.functional.embedding(input, weight, padding_idx, max_norm, norm_type,
/// scale_grad_by_freq, sparse) without a max_norm.
bool calls_functional(const Node* node) {
  if (node->kind() != c10::prim::CallFunction || node->inputs().size() != 8) return false;
  const auto type = node->input(0)->type()->cast<c10::FunctionType>();
  if (type == nullptr || type->function()->name() != "embedding") return false;
  const auto max_norm = torch::jit::toIValue(node->input(4));
  return max_norm && max_norm->isNone();
}

/// The arguments of kModuleEmbedding behind `self`; empty if the node is not a lookup in the own weight.
std::vector<Value*> lookup_of(Node* node, const Value* self) {
  if (node->kind() == c10::aten::embedding && is_own_weight(node->input(0), self))
    return {node->input(0), node->input(1), node->input(2), node->input(3), node->input(4)};
  if (calls_functional(node) && is_own_weight(node->input(2), self))
    return {node->input(2), node->input(1), node->input(3), node->input(6), node->input(7)};
  return {};
}

}  // namespace

std::vector<std::string> replace_embeddings(const torch::jit::Module& root,
                                            const std::unordered_set<std::string>& modules) {
  return replace_with_module_operator(root, modules, kModuleEmbedding, lookup_of);
}

}  // namespace accel::train
