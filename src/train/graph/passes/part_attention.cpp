#include "train/graph/passes/part_attention.hpp"

#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/ir/ir.h>

#include <algorithm>
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

/// Whether values in the methods of one module are parts.
class Parts {
 public:
  Parts(const std::string& module, const GivesPart& gives_part) : module_(module), gives_part_(gives_part) {}

  bool is_part(const Value* value) {
    if (!may_hold_tensor(*value->type()) || !seen_.insert(value).second) return false;
    const Node* node = value->node();
    if (node->kind() == c10::prim::CallMethod) {
      if (const std::optional<bool> known = gives_part(node)) return *known;
    }
    if (node->kind() == c10::prim::TupleUnpack && node->input()->node()->kind() == c10::prim::TupleConstruct)
      return is_part(node->input()->node()->input(value->offset()));
    const std::size_t place = value->offset();
    if (node->kind() == c10::prim::If)
      return is_part(node->blocks()[0]->outputs()[place]) || is_part(node->blocks()[1]->outputs()[place]);
    // The first inputs of a loop are its length and its condition, and the first result of its block is that.
    if (node->kind() == c10::prim::Loop)
      return is_part(node->input(place + 2)) || is_part(node->blocks()[0]->outputs()[place + 1]);
    return std::any_of(node->inputs().begin(), node->inputs().end(),
                       [&](const Value* input) { return is_part(input); });
  }

 private:
  /// Sizes and the device of a part are no part.
  static bool may_hold_tensor(const c10::Type& type) {
    switch (type.kind()) {
      case c10::TypeKind::ListType:
        return may_hold_tensor(*type.containedType(0));
      case c10::TypeKind::BoolType:
      case c10::TypeKind::DeviceObjType:
      case c10::TypeKind::StringType:
      case c10::TypeKind::NoneType:
        return false;
      default:
        return !type.isSubtypeOf(*c10::NumberType::get());
    }
  }

  /// What the plan says of the module that a node calls.
  [[nodiscard]] std::optional<bool> gives_part(const Node* call) const {
    const std::optional<std::string> path = attribute_path(call->input(0));
    if (!path) return std::nullopt;
    return part_given_by(module_.empty() || path->empty() ? module_ + *path : module_ + "." + *path,
                         gives_part_);
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

std::optional<bool> part_given_by(const std::string& module, const GivesPart& gives_part) {
  std::optional<bool> result;
  for (const auto& [name, part] : gives_part) {
    if (name == module) return part;
    if (module.empty() || name.starts_with(module + ".")) result = result.value_or(true) && part;
  }
  return result;
}

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
