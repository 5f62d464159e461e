#include "train/graph/passes/check_views.hpp"

#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/ir.h>

#include <unordered_set>

#include "train/graph/run/part_view.hpp"

namespace accel::train {
namespace {

using torch::jit::Block;
using torch::jit::Node;

void check_views(Block* block) {
  for (Node* node : block->nodes()) {
    for (Block* inner : node->blocks()) check_views(inner);
    const bool is_view = node->kind() == c10::aten::view || node->kind() == c10::aten::reshape;
    // The other form of `view` takes a dtype.
    const bool has_sizes = is_view && node->input(1)->type()->isSubtypeOf(*c10::ListType::ofInts());
    if (!has_sizes || node->input(0)->node()->kind() != c10::prim::CallMethod) continue;
    Node* check = node->owningGraph()->create(c10::Symbol::fromQualString(kCheckView),
                                              {node->input(0), node->input(1)}, 0);
    check->setSourceRange(node->sourceRange());
    check->insertBefore(node);
  }
}

}  // namespace

void check_views(const torch::jit::Module& root) {
  std::unordered_set<const c10::ClassType*> done;  // Instances of one class share its methods.
  for (const auto& module : root.named_modules()) {
    const c10::ClassTypePtr type = module.value.type();
    if (!done.insert(type.get()).second) continue;
    for (torch::jit::Function* method : type->methods()) {
      if (!method->isGraphFunction()) continue;
      torch::jit::Graph& graph = *torch::jit::toGraphFunction(*method).graph();
      check_views(graph.block());
      graph.lint();
    }
  }
}

}  // namespace accel::train
