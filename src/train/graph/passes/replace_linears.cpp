#include "train/graph/passes/replace_linears.hpp"

#include "train/graph/passes/own_weight.hpp"
#include "train/graph/run/module_linear.hpp"

namespace accel::train {
namespace {

using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;

bool is_product(const Node* node, const Value* self) {
  return node->kind() == c10::aten::linear && is_own_weight(node->input(1), self);
}

bool has_product(const c10::ClassType& type) {
  bool found = false;
  for_each_method(type, [&](Graph& graph) {
    for (const Node* node : torch::jit::findAllNodes(graph, c10::aten::linear, /*recurse=*/true))
      found = found || is_product(node, graph.inputs().at(0));
  });
  return found;
}

}  // namespace

std::vector<std::string> replace_linears(const torch::jit::Module& root,
                                         const std::unordered_set<std::string>& modules) {
  return replace_with_module_operator(root, modules, kModuleLinear,
                                      [](Node* node, const Value* self) -> std::vector<Value*> {
                                        if (!is_product(node, self)) return {};
                                        return {node->input(0), node->input(1), node->input(2)};
                                      });
}

std::vector<std::string> modules_with_other_use(const torch::jit::Module& root,
                                                const std::unordered_set<std::string>& modules) {
  const auto linear = c10::Symbol::fromQualString(kModuleLinear);
  const auto is_product_use = [&](const torch::jit::Use& use) {
    return use.user->kind() == linear && use.offset == 2;
  };
  std::vector<std::string> found;
  for (const auto& module : root.named_modules()) {
    if (modules.contains(module.name) && other_use_of_weight(*module.value.type(), is_product_use) != nullptr)
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
