#include "train/graph/passes/check_views.hpp"

#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/ir/ir.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <unordered_set>

#include "train/graph/passes/own_weight.hpp"
#include "train/graph/run/part_view.hpp"

namespace accel::train {
namespace {

using torch::jit::Block;
using torch::jit::Node;
using torch::jit::Value;

/// The operators that take a part of a dimension, or make several of it. Their argument for it is `dim`.
bool cuts(const Node* node) {
  static const std::unordered_set<c10::Symbol> kCuts = {
      c10::aten::chunk,
      c10::aten::unsafe_chunk,
      c10::aten::split,
      c10::aten::unsafe_split,
      c10::aten::split_with_sizes,
      c10::aten::unsafe_split_with_sizes,
      c10::aten::tensor_split,
      c10::aten::slice,
      c10::aten::narrow,
      c10::aten::unflatten,
      c10::aten::select,
      c10::aten::unbind,
      c10::aten::glu,
  };
  return kCuts.contains(node->kind()) && node->input(0)->type()->isSubtypeOf(*c10::TensorType::get());
}

bool is_constant_int(const Value* value, std::int64_t expected) {
  const std::optional<c10::IValue> constant = torch::jit::toIValue(value);
  return constant && constant->isInt() && constant->toInt() == expected;
}

bool is_none_or(const Value* value, std::int64_t number) {
  const std::optional<c10::IValue> constant = torch::jit::toIValue(value);
  return (constant && constant->isNone()) || is_constant_int(value, number);
}

/// Whether the operator takes all of the dimension, whatever its size is, or makes heads of it.
bool leaves_parts_right(const Node* node) {
  if (node->kind() == c10::aten::slice) {
    return is_none_or(node->namedInput("start"), 0) &&
           is_none_or(node->namedInput("end"), std::numeric_limits<std::int64_t>::max()) &&
           is_none_or(node->namedInput("step"), 1);
  }
  if (node->kind() != c10::aten::unflatten) return false;
  const Value* sizes = node->namedInput("sizes");
  if (const auto constant = torch::jit::toIValue(sizes); constant && constant->isIntList())
    return !constant->toIntVector().empty() && constant->toIntVector().front() == -1;
  const Node* list = sizes->node();
  return list->kind() == c10::prim::ListConstruct && !list->inputs().empty() &&
         is_constant_int(list->input(0), -1);
}

/// What slices were taken from: `x[:, :, 1:]` is three of them, and the last one cuts.
Value* before_slices(Value* value) {
  while (value->node()->kind() == c10::aten::slice) value = value->node()->input(0);
  return value;
}

void insert_check(Node* node, const char* check, Value* tensor, Value* argument) {
  Node* created = node->owningGraph()->create(c10::Symbol::fromQualString(check), {tensor, argument}, 0);
  created->setSourceRange(node->sourceRange());
  created->insertBefore(node);
}

void check_cut(Node* node) {
  Value* tensor = before_slices(node->input(0));
  Value* dim = node->namedInput("dim");
  const bool has_number = dim->type()->isSubtypeOf(*c10::IntType::get());  // Others have a name.
  if (tensor->node()->kind() != c10::prim::CallMethod || !has_number || leaves_parts_right(node)) return;
  insert_check(node, kCheckCut, tensor, dim);
}

void check_views(Block* block) {
  for (Node* node : block->nodes()) {
    for (Block* inner : node->blocks()) check_views(inner);
    if (cuts(node)) check_cut(node);
    const bool is_view = node->kind() == c10::aten::view || node->kind() == c10::aten::reshape;
    // The other form of `view` takes a dtype.
    const bool has_sizes = is_view && node->input(1)->type()->isSubtypeOf(*c10::ListType::ofInts());
    if (!has_sizes || node->input(0)->node()->kind() != c10::prim::CallMethod) continue;
    insert_check(node, kCheckView, node->input(0), node->input(1));
  }
}

}  // namespace

void check_views(const torch::jit::Module& root) {
  std::unordered_set<const c10::ClassType*> done;  // Instances of one class share its methods.
  for (const auto& module : root.named_modules()) {
    const c10::ClassTypePtr type = module.value.type();
    if (!done.insert(type.get()).second) continue;
    for_each_method(*type, [](torch::jit::Graph& graph) {
      check_views(graph.block());
      graph.lint();
    });
  }
}

}  // namespace accel::train
