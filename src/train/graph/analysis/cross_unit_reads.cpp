#include "train/graph/analysis/cross_unit_reads.hpp"

#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/ir.h>

#include <vector>

#include "train/graph/tensors.hpp"

namespace accel::train {
namespace {

using torch::jit::Block;
using torch::jit::Node;
using torch::jit::Value;

bool is_module_type(const c10::TypePtr& type) {
  const auto class_type = type->cast<c10::ClassType>();
  return class_type != nullptr && class_type->is_module();
}

class Finder {
 public:
  Finder(const torch::jit::Module& root, const std::unordered_set<std::string>& units) {
    for (const auto& module : root.named_modules()) {
      if (units.contains(module.name)) units_.insert(module.value._ivalue().get());
    }
  }

  void search(Block* block, const torch::jit::Module& module) {
    for (Node* node : block->nodes()) {
      for (Block* inner : node->blocks()) search(inner, module);
      if (node->kind() == c10::prim::GetAttr) examine(node, module);
    }
  }

  std::unordered_set<const at::TensorImpl*> found;

 private:
  void examine(Node* node, const torch::jit::Module& module) {
    const c10::TypePtr& type = node->output()->type();
    std::vector<std::string> path = {node->s(c10::attr::name)};
    Value* value = node->input();
    for (; value->node()->kind() == c10::prim::GetAttr; value = value->node()->input())
      path.push_back(value->node()->s(c10::attr::name));
    if (path.size() < 2 || value != node->owningGraph()->inputs().at(0)) return;

    // The code of a unit is inside the unit, so that only a unit that is read as an attribute is crossed.
    bool through_unit = false;
    c10::IValue reached = module._ivalue()->getAttr(path.back());
    for (auto name = path.rbegin() + 1; name != path.rend(); ++name) {
      through_unit |= units_.contains(reached.toObject().get());
      reached = reached.toObject()->getAttr(*name);
    }
    if (!through_unit) return;
    if (reached.isTensor()) {
      found.insert(reached.toTensor().unsafeGetTensorImpl());
    } else if (is_module_type(type)) {
      add_parameters(torch::jit::Module(reached.toObject()));
    } else {
      for_each_tensor(reached, [&](const at::Tensor& tensor) { found.insert(tensor.unsafeGetTensorImpl()); });
    }
  }

  /// Units gather their own parameters when they are called, whoever calls them.
  void add_parameters(const torch::jit::Module& module) {
    if (units_.contains(module._ivalue().get())) return;
    for (const auto& parameter : module.named_parameters(/*recurse=*/false))
      found.insert(parameter.value.unsafeGetTensorImpl());
    for (const torch::jit::Module& child : module.children()) add_parameters(child);
  }

  std::unordered_set<const c10::ivalue::Object*> units_;
};

}  // namespace

std::unordered_set<const at::TensorImpl*> cross_unit_reads(const torch::jit::Module& root,
                                                           const std::unordered_set<std::string>& units) {
  if (units.empty()) return {};
  Finder finder(root, units);
  for (const auto& module : root.named_modules()) {
    for (const torch::jit::Function* method : module.value.type()->methods()) {
      auto* function = module.value.type()->findMethod(method->name());
      finder.search(torch::jit::toGraphFunction(*function).graph()->block(), module.value);
    }
  }
  return std::move(finder.found);
}

}  // namespace accel::train
