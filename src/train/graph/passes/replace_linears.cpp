#include "train/graph/passes/replace_linears.hpp"

#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/ir.h>

#include <unordered_map>

#include "train/graph/run/module_linear.hpp"

namespace accel::train {
namespace {

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;

bool is_own_weight(const Value* value, const Value* self) {
  const Node* node = value->node();
  return node->kind() == c10::prim::GetAttr && node->s(c10::attr::name) == "weight" && node->input() == self;
}

/// Replaces the products in a block of a method whose module is `self`. Returns their number.
int replace(Block* block, Value* self) {
  int count = 0;
  const std::vector<Node*> nodes(block->nodes().begin(), block->nodes().end());
  for (Node* node : nodes) {
    for (Block* inner : node->blocks()) count += replace(inner, self);
    if (node->kind() != c10::aten::linear || !is_own_weight(node->input(1), self)) continue;
    Node* call = node->owningGraph()->create(c10::Symbol::fromQualString(kModuleLinear),
                                             {self, node->input(0), node->input(1), node->input(2)}, 1);
    call->output()->setType(c10::TensorType::get());
    call->setSourceRange(node->sourceRange());
    call->insertBefore(node);
    node->output()->replaceAllUsesWith(call->output());
    node->destroy();
    ++count;
  }
  return count;
}

int replace(const c10::ClassType& type) {
  int count = 0;
  for (torch::jit::Function* method : type.methods()) {
    if (!method->isGraphFunction()) continue;
    Graph& graph = *torch::jit::toGraphFunction(*method).graph();
    count += replace(graph.block(), graph.inputs().at(0));
    graph.lint();
  }
  return count;
}

}  // namespace

std::vector<std::string> replace_linears(const torch::jit::Module& root,
                                         const std::unordered_set<std::string>& modules) {
  std::unordered_map<const c10::ClassType*, int> counts;  // Instances of one class share its methods.
  std::vector<std::string> without_product;
  for (const auto& module : root.named_modules()) {
    if (!modules.contains(module.name)) continue;
    const c10::ClassType* type = module.value.type().get();
    const auto [entry, is_new] = counts.try_emplace(type, 0);
    if (is_new) entry->second = replace(*type);
    if (entry->second == 0) without_product.push_back(module.name);
  }
  return without_product;
}

}  // namespace accel::train
