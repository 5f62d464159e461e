#include "train/graph/passes/own_weight.hpp"

#include <torch/csrc/jit/api/function_impl.h>

#include <unordered_map>

namespace accel::train {
namespace {

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;

/// Returns the number of nodes that were replaced.
int replace(Block* block, Value* self, c10::Symbol op, const ArgumentsOf& arguments_of) {
  int count = 0;
  const std::vector<Node*> nodes(block->nodes().begin(), block->nodes().end());
  for (Node* node : nodes) {
    for (Block* inner : node->blocks()) count += replace(inner, self, op, arguments_of);
    std::vector<Value*> arguments = arguments_of(node, self);
    if (arguments.empty()) continue;
    arguments.insert(arguments.begin(), self);
    Node* call = node->owningGraph()->create(op, arguments, 1);
    call->output()->setType(c10::TensorType::get());
    call->setSourceRange(node->sourceRange());
    call->insertBefore(node);
    node->output()->replaceAllUsesWith(call->output());
    node->destroy();
    ++count;
  }
  return count;
}

}  // namespace

void for_each_method(const c10::ClassType& type, const std::function<void(Graph&)>& visit) {
  for (torch::jit::Function* method : type.methods()) {
    if (method->isGraphFunction()) visit(*torch::jit::toGraphFunction(*method).graph());
  }
}

bool is_own_weight(const Value* value, const Value* self) {
  const Node* node = value->node();
  return node->kind() == c10::prim::GetAttr && node->s(c10::attr::name) == "weight" && node->input() == self;
}

std::vector<std::string> replace_with_module_operator(const torch::jit::Module& root,
                                                      const std::unordered_set<std::string>& modules,
                                                      const char* op, const ArgumentsOf& arguments_of) {
  const auto symbol = c10::Symbol::fromQualString(op);
  std::unordered_map<const c10::ClassType*, int> counts;  // Instances of one class share its methods.
  std::vector<std::string> without;
  for (const auto& module : root.named_modules()) {
    if (!modules.contains(module.name)) continue;
    const c10::ClassType* type = module.value.type().get();
    const auto [entry, is_new] = counts.try_emplace(type, 0);
    if (is_new) {
      for_each_method(*type, [&, &count = entry->second](Graph& graph) {
        count += replace(graph.block(), graph.inputs().at(0), symbol, arguments_of);
        graph.lint();
      });
    }
    if (entry->second == 0) without.push_back(module.name);
  }
  return without;
}

const Node* other_use_of_weight(const c10::ClassType& type,
                                const std::function<bool(const torch::jit::Use&)>& is_allowed) {
  const Node* found = nullptr;
  for_each_method(type, [&](Graph& graph) {
    for (const Node* node : torch::jit::findAllNodes(graph, c10::prim::GetAttr, /*recurse=*/true)) {
      if (!is_own_weight(node->output(), graph.inputs().at(0))) continue;
      for (const torch::jit::Use& use : node->output()->uses()) {
        if (found == nullptr && !is_allowed(use)) found = use.user;
      }
    }
  });
  return found;
}

}  // namespace accel::train
