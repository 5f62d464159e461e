#include "train/graph/passes/part_attention.hpp"

#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/ir/ir.h>

#include <optional>
#include <unordered_set>

#include "train/graph/analysis/attribute_path.hpp"
#include "train/graph/passes/own_weight.hpp"
#include "train/graph/passes/replace_attention.hpp"
#include "train/graph/run/module_attention.hpp"

namespace accel::train {
namespace {

using torch::jit::Block;
using torch::jit::Node;
using torch::jit::Value;

using GivesPart = std::unordered_map<std::string, bool>;

/// Whether values in the methods of one module are parts.
class Parts {
 public:
  Parts(const std::string& module, const GivesPart& gives_part) : module_(module), gives_part_(gives_part) {}

  bool is_part(const Value* value) {
    if (!may_hold_tensor(*value->type()) || !seen_.insert(value).second) return false;
    const Node* node = value->node();
    if (const std::optional<bool> known = gives_part(node)) return *known;
    for (const Block* block : node->blocks()) {
      for (const Value* result : block->outputs()) {
        if (is_part(result)) return true;
      }
    }
    for (const Value* input : node->inputs()) {
      if (is_part(input)) return true;
    }
    return false;
  }

 private:
  /// Sizes of a part are no part.
  static bool may_hold_tensor(const c10::Type& type) {
    if (type.kind() == c10::TypeKind::ListType) return may_hold_tensor(*type.containedType(0));
    return !type.isSubtypeOf(*c10::NumberType::get()) && type.kind() != c10::TypeKind::BoolType;
  }

  /// What the plan says of the module that a node calls.
  [[nodiscard]] std::optional<bool> gives_part(const Node* node) const {
    if (node->kind() != c10::prim::CallMethod) return std::nullopt;
    const std::optional<std::string> path = attribute_path(node->input(0));
    if (!path) return std::nullopt;
    const auto found = gives_part_.find(module_.empty() ? *path : module_ + "." + *path);
    return found == gives_part_.end() ? std::nullopt : std::optional(found->second);
  }

  const std::string& module_;
  const GivesPart& gives_part_;
  std::unordered_set<const Value*> seen_;
};

bool is_zero(const Value* dropout) {
  const std::optional<c10::IValue> constant = torch::jit::toIValue(dropout);
  return constant && constant->isDouble() && constant->toDouble() == 0;
}

}  // namespace

std::unordered_map<std::string, std::vector<std::int64_t>> find_part_attention(const torch::jit::Module& root,
                                                                               const GivesPart& gives_part) {
  call_module_attention(root);
  const auto attention = c10::Symbol::fromQualString(kModuleAttention);
  std::unordered_map<std::string, std::vector<std::int64_t>> found;
  for (const auto& module : root.named_modules()) {
    std::vector<std::int64_t> numbers;
    for_each_method(*module.value.type(), [&](torch::jit::Graph& graph) {
      for (const Node* node : torch::jit::findAllNodes(graph, attention, /*recurse=*/true)) {
        if (!is_zero(node->input(kAttentionDropout)) &&
            Parts(module.name, gives_part).is_part(node->input(kAttentionQuery)))
          numbers.push_back(torch::jit::toIValue(node->input(kAttentionNumber))->toInt());
      }
    });
    if (!numbers.empty()) found.emplace(module.name, std::move(numbers));
  }
  return found;
}

}  // namespace accel::train
