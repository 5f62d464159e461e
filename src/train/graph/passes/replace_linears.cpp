#include "train/graph/passes/replace_linears.hpp"

#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/ir.h>

#include <algorithm>
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

bool is_product(const Node* node, const Value* self) {
  return node->kind() == c10::aten::linear && is_own_weight(node->input(1), self);
}

bool has_product(const Block* block, const Value* self) {
  for (const Node* node : block->nodes()) {
    if (is_product(node, self)) return true;
    for (const Block* inner : node->blocks()) {
      if (has_product(inner, self)) return true;
    }
  }
  return false;
}

bool has_product(const c10::ClassType& type) {
  for (torch::jit::Function* method : type.methods()) {
    if (!method->isGraphFunction()) continue;
    const Graph& graph = *torch::jit::toGraphFunction(*method).graph();
    if (has_product(graph.block(), graph.inputs().at(0))) return true;
  }
  return false;
}

/// Replaces the products in a block of a method whose module is `self`. Returns their number.
int replace(Block* block, Value* self) {
  int count = 0;
  const std::vector<Node*> nodes(block->nodes().begin(), block->nodes().end());
  for (Node* node : nodes) {
    for (Block* inner : node->blocks()) count += replace(inner, self);
    if (!is_product(node, self)) continue;
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

/// Whether a node of the block uses the weight of `self` other than as the weight of kModuleLinear.
bool uses_weight_otherwise(const Block* block, const Value* self) {
  const c10::Symbol linear = c10::Symbol::fromQualString(kModuleLinear);
  const auto is_other = [&](const torch::jit::Use& use) {
    return use.user->kind() != linear || use.offset != 2;
  };
  for (const Node* node : block->nodes()) {
    for (const Block* inner : node->blocks()) {
      if (uses_weight_otherwise(inner, self)) return true;
    }
    if (node->outputs().size() != 1 || !is_own_weight(node->output(), self)) continue;
    const auto& uses = node->output()->uses();
    if (std::any_of(uses.begin(), uses.end(), is_other)) return true;
  }
  return false;
}

bool uses_weight_otherwise(const c10::ClassType& type) {
  for (torch::jit::Function* method : type.methods()) {
    if (!method->isGraphFunction()) continue;
    const Graph& graph = *torch::jit::toGraphFunction(*method).graph();
    if (uses_weight_otherwise(graph.block(), graph.inputs().at(0))) return true;
  }
  return false;
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

std::vector<std::string> modules_with_other_use(const torch::jit::Module& root,
                                                const std::unordered_set<std::string>& modules) {
  std::vector<std::string> found;
  for (const auto& module : root.named_modules()) {
    if (modules.contains(module.name) && uses_weight_otherwise(*module.value.type()))
      found.push_back(module.name);
  }
  return found;
}

std::vector<std::string> modules_with_product(const torch::jit::Module& root) {
  std::vector<std::string> modules;
  for (const auto& module : root.named_modules()) {
    const c10::ClassTypePtr type = module.value.type();
    const auto slot = type->findAttributeSlot("weight");
    if (!slot) continue;
    const c10::IValue weight = module.value._ivalue()->getSlot(*slot);
    if (weight.isTensor() && weight.toTensor().dim() == 2 && has_product(*type))
      modules.push_back(module.name);
  }
  return modules;
}

}  // namespace accel::train
