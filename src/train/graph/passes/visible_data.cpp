#include "train/graph/passes/visible_data.hpp"

#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/ir.h>

#include <unordered_set>

namespace accel::train {
namespace {

using torch::jit::Block;
using torch::jit::Node;

/// Goes through methods and the functions that they call.
class Replacer {
 public:
  void replace(torch::jit::Function& function) {
    if (!function.isGraphFunction() || !done_.insert(&function).second) return;
    replace(torch::jit::toGraphFunction(function).graph()->block());
  }

 private:
  void replace(Block* block) {
    static const c10::Symbol kData = c10::Symbol::prim("data");  // libtorch has no constant for this name.
    for (auto it = block->nodes().begin(); it != block->nodes().end();) {
      Node* node = *it++;
      for (Block* inner : node->blocks()) replace(inner);
      if (node->kind() == c10::prim::CallFunction)
        replace(*node->input(0)->type()->expectRef<c10::FunctionType>().function());
      if (node->kind() != kData) continue;
      const torch::jit::WithInsertPoint before(node);
      torch::jit::Value* detached = node->owningGraph()->insert(c10::aten::detach, {node->input()});
      detached->setType(node->output()->type());
      node->output()->replaceAllUsesWith(detached);
      node->destroy();
    }
  }

  std::unordered_set<const torch::jit::Function*> done_;
};

}  // namespace

void make_data_visible(const torch::jit::Module& root) {
  Replacer replacer;
  for (const torch::jit::Module& module : root.modules()) {
    for (torch::jit::Function* method : module.type()->methods()) replacer.replace(*method);
  }
}

}  // namespace accel::train
