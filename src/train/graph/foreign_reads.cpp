#include "train/graph/foreign_reads.hpp"

#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/ir.h>

#include <vector>

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
  explicit Finder(const std::unordered_set<std::string>& unit_classes) : unit_classes_(unit_classes) {}

  void search(Block* block, const torch::jit::Module& module) {
    for (Node* node : block->nodes()) {
      for (Block* inner : node->blocks()) search(inner, module);
      if (node->kind() == c10::prim::GetAttr) examine(node, module);
    }
  }

  std::unordered_set<const at::TensorImpl*> found;

 private:
  bool is_unit(const Value* value) const {
    // The graph's own self is inside its boundary, so only a unit that was itself read as an attribute
    // counts.
    if (value->node()->kind() != c10::prim::GetAttr) return false;
    const auto type = value->type()->cast<c10::ClassType>();
    return type != nullptr && type->name() && unit_classes_.contains(type->name()->name());
  }

  void examine(Node* node, const torch::jit::Module& module) {
    const c10::TypePtr& type = node->output()->type();
    if (!type->isSubtypeOf(*c10::TensorType::get()) && !is_module_type(type)) return;
    std::vector<std::string> path = {node->s(c10::attr::name)};
    bool through_unit = false;
    Value* value = node->input();
    for (; value->node()->kind() == c10::prim::GetAttr; value = value->node()->input()) {
      through_unit |= is_unit(value);
      path.push_back(value->node()->s(c10::attr::name));
    }
    if (!through_unit || value != node->owningGraph()->inputs().at(0)) return;

    c10::IValue reached = module._ivalue();
    for (auto name = path.rbegin(); name != path.rend(); ++name) reached = reached.toObject()->getAttr(*name);
    if (reached.isTensor()) {
      found.insert(reached.toTensor().unsafeGetTensorImpl());
    } else if (reached.isObject()) {
      for (const auto& parameter :
           torch::jit::Module(reached.toObject()).named_parameters(/*recurse=*/true)) {
        found.insert(parameter.value.unsafeGetTensorImpl());
      }
    }
  }

  const std::unordered_set<std::string>& unit_classes_;
};

}  // namespace

std::unordered_set<const at::TensorImpl*> foreign_reads(const torch::jit::Module& root,
                                                        const std::unordered_set<std::string>& unit_classes) {
  Finder finder(unit_classes);
  if (unit_classes.empty()) return {};
  for (const auto& module : root.named_modules()) {
    for (const torch::jit::Function* method : module.value.type()->methods()) {
      auto* function = module.value.type()->findMethod(method->name());
      finder.search(torch::jit::toGraphFunction(*function).graph()->block(), module.value);
    }
  }
  return std::move(finder.found);
}

}  // namespace accel::train
