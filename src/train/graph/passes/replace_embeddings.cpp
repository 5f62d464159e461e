#include "train/graph/passes/replace_embeddings.hpp"

#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/ir/ir.h>

#include <unordered_map>

#include "train/graph/run/module_embedding.hpp"

namespace accel::train {
namespace {

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;

bool is_weight_of(const Value* value, const Value* self) {
  const Node* node = value->node();
  return node->kind() == c10::prim::GetAttr && node->s(c10::attr::name) == "weight" && node->input() == self;
}

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
  if (node->kind() == c10::aten::embedding && is_weight_of(node->input(0), self))
    return {node->input(0), node->input(1), node->input(2), node->input(3), node->input(4)};
  if (calls_functional(node) && is_weight_of(node->input(2), self))
    return {node->input(2), node->input(1), node->input(3), node->input(6), node->input(7)};
  return {};
}

/// Replaces the lookups in a block of a method whose module is `self`. Returns their number.
int replace_lookups(Block* block, Value* self) {
  int count = 0;
  const std::vector<Node*> nodes(block->nodes().begin(), block->nodes().end());
  for (Node* node : nodes) {
    for (Block* inner : node->blocks()) count += replace_lookups(inner, self);
    std::vector<Value*> arguments = lookup_of(node, self);
    if (arguments.empty()) continue;
    arguments.insert(arguments.begin(), self);
    Node* call = node->owningGraph()->create(c10::Symbol::fromQualString(kModuleEmbedding), arguments, 1);
    call->output()->setType(c10::TensorType::get());
    call->setSourceRange(node->sourceRange());
    call->insertBefore(node);
    node->output()->replaceAllUsesWith(call->output());
    node->destroy();
    ++count;
  }
  return count;
}

int replace_lookups(const c10::ClassType& type) {
  int count = 0;
  for (torch::jit::Function* method : type.methods()) {
    if (!method->isGraphFunction()) continue;
    Graph& graph = *torch::jit::toGraphFunction(*method).graph();
    count += replace_lookups(graph.block(), graph.inputs().at(0));
    graph.lint();
  }
  return count;
}

}  // namespace

std::vector<std::string> replace_embeddings(const torch::jit::Module& root,
                                            const std::unordered_set<std::string>& modules) {
  std::unordered_map<const c10::ClassType*, int> counts;  // Instances of one class share its methods.
  std::vector<std::string> without_lookup;
  for (const auto& module : root.named_modules()) {
    if (!modules.contains(module.name)) continue;
    const c10::ClassType* type = module.value.type().get();
    const auto [entry, is_new] = counts.try_emplace(type, 0);
    if (is_new) entry->second = replace_lookups(*type);
    if (entry->second == 0) without_lookup.push_back(module.name);
  }
  return without_lookup;
}

}  // namespace accel::train
