#include "train/graph/mend_traced.hpp"

#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/ir/ir.h>

#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

namespace accel::train {
namespace {

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;

/// One graph of a method of `module`.
class Mender {
 public:
  Mender(Graph& graph, const torch::jit::Module& module, at::Device device)
      : graph_(graph), device_(device), has_flag_(module.hasattr("training")) {
    if (has_flag_) training_ = module.is_training();
  }

  void mend(Block* block) {
    const std::vector<Node*> nodes(block->nodes().begin(), block->nodes().end());
    for (Node* node : nodes) {
      for (Block* inner : node->blocks()) mend(inner);
      mend_device(node);
      if (!has_flag_ || node->kind().ns() != c10::namespaces::aten) continue;
      mend_training(node);
      if (node->kind() == c10::aten::scaled_dot_product_attention) mend_attention(node);
    }
  }

 private:
  void mend_device(Node* node) const {
    if (node->kind() != c10::prim::Constant || node->output()->type()->kind() != c10::TypeKind::DeviceObjType)
      return;
    const std::optional<c10::IValue> value = torch::jit::toIValue(node->output());
    if (!value || !value->isDevice() || value->toDevice().type() == device_.type()) return;
    node->s_(c10::attr::value, device_.str());
  }

  void mend_training(Node* node) {
    const c10::FunctionSchema* schema = node->maybeSchema();
    if (schema == nullptr) return;
    for (std::size_t i = 0; i < schema->arguments().size() && i < node->inputs().size(); ++i) {
      const std::string& name = schema->arguments()[i].name();
      if (name != "train" && name != "training") continue;
      const std::optional<c10::IValue> value = torch::jit::toIValue(node->input(i));
      if (!value || !value->isBool() || value->toBool() != training_ || lacks_statistics(node)) continue;
      const torch::jit::WithInsertPoint before(node);
      node->replaceInput(i, flag());
    }
  }

  /// Without running statistics a batch norm uses those of the batch, in evaluation, too.
  static bool lacks_statistics(Node* node) {
    return node->kind() == c10::aten::batch_norm && node->input(3)->mustBeNone();
  }

  void mend_attention(Node* node) {
    constexpr std::size_t kDropout = 4;
    const std::optional<c10::IValue> p = torch::jit::toIValue(node->input(kDropout));
    if (!training_ || !p || !p->isDouble() || p->toDouble() == 0) return;
    const torch::jit::WithInsertPoint before(node);
    Value* as_number = graph_.insert(c10::aten::Float, {flag()});
    node->replaceInput(kDropout, graph_.insert(c10::aten::mul, {node->input(kDropout), as_number}));
  }

  Value* flag() {
    return graph_.insertGetAttr(graph_.inputs().at(0), "training")->setType(c10::BoolType::get());
  }

  Graph& graph_;
  at::Device device_;
  bool has_flag_;
  bool training_ = false;
};

}  // namespace

void mend_traced(const torch::jit::Module& root, at::Device device) {
  std::unordered_set<const torch::jit::Function*> done;  // Instances of a scripted class share its methods.
  for (const auto& module : root.named_modules()) {
    for (torch::jit::Function* method : module.value.type()->methods()) {
      if (!done.insert(method).second) continue;
      Graph& graph = *torch::jit::toGraphFunction(*method).graph();
      Mender(graph, module.value, device).mend(graph.block());
    }
  }
}

}  // namespace accel::train
