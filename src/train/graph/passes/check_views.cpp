#include "train/graph/passes/check_views.hpp"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/ir/ir.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "train/graph/analysis/attribute_path.hpp"
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

/// Whether the last dimension of the result is that of its inputs, element by element. `x[:, :, 1:]` is
/// three slices, and the last one cuts.
bool keeps_last_dimension(const Node* node) {
  static const std::unordered_set<c10::Symbol> kKeeps = {
      c10::aten::to,    c10::aten::type_as, c10::aten::contiguous, c10::aten::clone,
      c10::aten::slice, c10::aten::dropout, c10::aten::dropout_,
  };
  if (kKeeps.contains(node->kind())) return true;
  const c10::FunctionSchema* schema = node->maybeSchema();
  if (schema == nullptr) return false;
  const auto known = c10::Dispatcher::singleton().findSchema(schema->operator_name());
  return known && known->hasTag(at::Tag::pointwise);
}

/// The paths of the instances of a class, whose methods they share.
using Instances = std::vector<std::string>;

/// Finds the values whose last dimension a value has: what modules returned that give a part in one of the
/// instances, and what the method gets.
class Sources {
 public:
  Sources(const GivesPart& gives_part, const Instances& instances)
      : gives_part_(gives_part), instances_(instances) {}

  std::vector<Value*> of(Value* value) {
    add(value);
    return found_;
  }

 private:
  void add(Value* value) {
    if (!value->type()->isSubtypeOf(*c10::TensorType::get()) || !seen_.insert(value).second) return;
    Node* node = value->node();
    if (node->kind() == c10::prim::Param) {
      found_.push_back(value);
    } else if (node->kind() == c10::prim::CallMethod) {
      add_method(node);
    } else if (node->kind() == c10::prim::CallFunction) {
      add_through(node, *node->input(0)->type()->expectRef<c10::FunctionType>().function(), 1, {});
    } else if (node->kind() == c10::prim::If) {
      for (Block* block : node->blocks()) add(block->outputs()[value->offset()]);
    } else if (keeps_last_dimension(node)) {
      for (Value* input : node->inputs()) add(input);
    }
  }

  void add_method(Node* node) {
    const auto type = node->input(0)->type()->cast<c10::ClassType>();
    const std::optional<std::string> path = attribute_path(node->input(0));
    if (!type || !path) return;
    Instances called;
    for (const std::string& name : instances_)
      called.push_back(name.empty() || path->empty() ? name + *path : name + "." + *path);
    const bool is_part = std::any_of(called.begin(), called.end(), [&](const std::string& module) {
      return part_given_by(module, gives_part_).value_or(false);
    });
    if (add_through(node, type->getMethod(node->s(c10::attr::name)), 0, called) || is_part)
      found_.push_back(node->output());
  }

  /// An activation may be a module or a function: its argument number n is input n + `first` of the node.
  /// Returns whether the code returns what a module in it gave.
  bool add_through(Node* node, torch::jit::Function& function, std::size_t first, const Instances& called) {
    const torch::jit::GraphFunction* code = torch::jit::tryToGraphFunction(function);
    if (code == nullptr || code->graph()->outputs().size() != 1) return false;
    const auto graph = code->graph();
    bool has_own = false;
    for (const Value* source : Sources(gives_part_, called).of(graph->outputs()[0])) {
      const bool is_argument = source->node() == graph->param_node();
      if (is_argument) add(node->input(source->offset() + first));
      has_own |= !is_argument;
    }
    return has_own;
  }

  const GivesPart& gives_part_;
  const Instances& instances_;
  std::vector<Value*> found_;
  std::unordered_set<const Value*> seen_;
};

/// Puts checks in front of operators in the methods of one class.
class ViewChecks {
 public:
  ViewChecks(const GivesPart& gives_part, const Instances& instances)
      : gives_part_(gives_part), instances_(instances) {}

  void insert_into(Block* block) const {
    for (Node* node : block->nodes()) {
      for (Block* inner : node->blocks()) insert_into(inner);
      if (cuts(node)) insert_cut(node);
      const bool is_view = node->kind() == c10::aten::view || node->kind() == c10::aten::reshape;
      // The other form of `view` takes a dtype.
      if (is_view && node->input(1)->type()->isSubtypeOf(*c10::ListType::ofInts()))
        insert(node, kCheckView, node->input(1));
    }
  }

 private:
  void insert_cut(Node* node) const {
    Value* dim = node->namedInput("dim");
    const bool has_number = dim->type()->isSubtypeOf(*c10::IntType::get());  // Others have a name.
    if (has_number && !leaves_parts_right(node)) insert(node, kCheckCut, dim);
  }

  /// Checks what modules returned and the first input of `node` has the last dimension of.
  void insert(Node* node, const char* check, Value* argument) const {
    for (Value* source : Sources(gives_part_, instances_).of(node->input(0))) {
      if (source->node()->kind() != c10::prim::CallMethod || !node->isDominatedBy(source->node())) continue;
      Node* created = node->owningGraph()->create(c10::Symbol::fromQualString(check), {source, argument}, 0);
      created->setSourceRange(node->sourceRange());
      created->insertBefore(node);
    }
  }

  const GivesPart& gives_part_;
  const Instances& instances_;
};

}  // namespace

void check_views(const torch::jit::Module& root, const GivesPart& gives_part) {
  std::unordered_map<const c10::ClassType*, Instances> classes;
  for (const auto& module : root.named_modules()) classes[module.value.type().get()].push_back(module.name);
  for (const auto& [type, instances] : classes) {
    for_each_method(*type, [&](torch::jit::Graph& graph) {
      ViewChecks(gives_part, instances).insert_into(graph.block());
      graph.lint();
    });
  }
}

}  // namespace accel::train
