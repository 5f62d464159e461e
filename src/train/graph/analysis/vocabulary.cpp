#include "train/graph/analysis/vocabulary.hpp"

#include <ATen/core/Tensor.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/ir.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace accel::train {
namespace {

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;

/// What is known of a value of a graph.
struct Known {
  bool is_tokens = false;            ///< It holds all tokens of the input, and nothing else.
  std::optional<c10::IValue> value;  ///< A module, or a parameter.
};

/// Whether the node is `x[:]` of one dimension. Graphs write `x[:, :]` as two such nodes.
bool slices_all(const Node* node) {
  const auto number = [&](std::size_t input) { return torch::jit::toIValue(node->input(input)); };
  const auto begin = number(2);
  const auto end = number(3);
  const auto step = number(4);
  const bool from_start = begin && (begin->isNone() || (begin->isInt() && begin->toInt() == 0));
  const bool to_end = end && (end->isNone() || (end->isInt() && end->toInt() == INT64_MAX));
  return from_start && to_end && step && step->isInt() && step->toInt() == 1;
}

/// Whether the result holds all elements of the first argument, and no others. A part of the tokens is not
/// enough: the rest may be larger numbers.
bool only_rearranges(const Node* node) {
  static constexpr std::array kKinds = {c10::aten::view,      c10::aten::reshape,       c10::aten::contiguous,
                                        c10::aten::flatten,   c10::aten::unsqueeze,     c10::aten::squeeze,
                                        c10::aten::transpose, c10::aten::permute,       c10::aten::expand,
                                        c10::aten::detach,    c10::aten::clone,         c10::aten::to,
                                        c10::aten::t,         c10::aten::alias,         c10::aten::expand_as,
                                        c10::aten::view_as,   c10::prim::unchecked_cast};
  if (node->kind() == c10::aten::slice) return slices_all(node);
  return std::find(kKinds.begin(), kKinds.end(), node->kind()) != kKinds.end();
}

/// The indices by which a node looks up rows of a table, which is its first input. Null for other nodes.
const Value* index_of(const Node* node) {
  if (node->kind() == c10::aten::embedding) return node->input(1);
  if (node->kind() == c10::aten::index_select) {
    const auto dimension = torch::jit::toIValue(node->input(1));
    return dimension && dimension->isInt() && dimension->toInt() == 0 ? node->input(2) : nullptr;
  }
  if (node->kind() != c10::aten::index) return nullptr;
  const Node* indices = node->input(1)->node();
  return indices->kind() == c10::prim::ListConstruct && indices->inputs().size() == 1 ? indices->input(0)
                                                                                      : nullptr;
}

bool writes(const Node* node, std::size_t input) {
  const c10::FunctionSchema* schema = node->maybeSchema();
  if (schema == nullptr || input >= schema->arguments().size()) return false;
  const c10::AliasInfo* alias = schema->arguments()[input].alias_info();
  return alias != nullptr && alias->isWrite();
}

/// Follows the tokens through the graphs, call by call.
class Follower {
 public:
  std::vector<Known> follow(Graph& graph, const std::vector<Known>& arguments, bool conditional) {
    std::unordered_map<const Value*, Known> known;
    for (std::size_t i = 0; i < arguments.size() && i < graph.inputs().size(); ++i)
      known[graph.inputs()[i]] = arguments[i];
    follow(graph.block(), known, conditional);
    return of(graph.outputs(), known);
  }

  std::optional<std::int64_t> rows;
  bool changes_tokens = false;  ///< Tokens, or a copy of them, are changed in place before the lookup.

 private:
  using Knowledge = std::unordered_map<const Value*, Known>;

  template <class Values>
  static std::vector<Known> of(const Values& values, const Knowledge& known) {
    std::vector<Known> result;
    for (const Value* value : values) {
      const auto found = known.find(value);
      result.push_back(found == known.end() ? Known{} : found->second);
    }
    return result;
  }

  void follow(Block* block, Knowledge& known, bool conditional) {
    for (Node* node : block->nodes()) {
      for (Block* inner : node->blocks()) follow(inner, known, true);
      for (std::size_t i = 0; i < node->inputs().size(); ++i)
        changes_tokens = changes_tokens || (writes(node, i) && known[node->input(i)].is_tokens);
      if (node->kind() == c10::prim::If) {
        join_branches(node, known);
      } else if (node->kind() == c10::prim::GetAttr) {
        const Known self = known[node->input()];
        if (self.value && self.value->isObject() &&
            self.value->toObjectRef().type()->hasAttribute(node->s(c10::attr::name))) {
          known[node->output()].value = self.value->toObjectRef().getAttr(node->s(c10::attr::name));
        }
      } else if (node->kind() == c10::prim::CallMethod || node->kind() == c10::prim::CallFunction) {
        call(node, known, conditional);
      } else if (const Value* index = index_of(node)) {
        const Known table = known[node->input(0)];
        if (!conditional && known[index].is_tokens && table.value && table.value->isTensor()) {
          const std::int64_t found = table.value->toTensor().size(0);
          rows = rows ? std::min(*rows, found) : found;
        }
      } else if (!node->inputs().empty() && known[node->input(0)].is_tokens && only_rearranges(node)) {
        known[node->output()].is_tokens = true;
      }
    }
  }

  /// An output is tokens if it is tokens in every branch.
  static void join_branches(const Node* node, Knowledge& known) {
    for (std::size_t i = 0; i < node->outputs().size(); ++i) {
      known[node->outputs()[i]].is_tokens =
          std::all_of(node->blocks().begin(), node->blocks().end(),
                      [&](const Block* branch) { return known[branch->outputs()[i]].is_tokens; });
    }
  }

  /// Follows only calls that get tokens: all others cannot look them up.
  void call(const Node* node, Knowledge& known, bool conditional) {
    std::vector<Known> arguments = of(node->inputs(), known);
    if (std::none_of(arguments.begin(), arguments.end(), [](const Known& one) { return one.is_tokens; }))
      return;
    torch::jit::Function* function = nullptr;
    if (node->kind() == c10::prim::CallFunction) {
      function = node->input(0)->type()->expectRef<c10::FunctionType>().function();
      arguments.erase(arguments.begin());
    } else if (const auto type = node->input(0)->type()->cast<c10::ClassType>()) {
      function = type->findMethod(node->s(c10::attr::name));
    }
    if (function == nullptr || !function->isGraphFunction()) return;
    const std::vector<Known> results =
        follow(*torch::jit::toGraphFunction(*function).graph(), arguments, conditional);
    for (std::size_t i = 0; i < results.size() && i < node->outputs().size(); ++i)
      known[node->outputs()[i]] = results[i];
  }
};

}  // namespace

std::optional<std::int64_t> vocabulary_of(const torch::jit::Module& root, std::size_t input) {
  torch::jit::Function* forward = root.type()->findMethod("forward");
  if (forward == nullptr || !forward->isGraphFunction()) return std::nullopt;
  std::vector<Known> arguments(input + 2);
  arguments.front().value = c10::IValue(root._ivalue());
  arguments.back().is_tokens = true;
  Follower follower;
  follower.follow(*torch::jit::toGraphFunction(*forward).graph(), arguments, false);
  return follower.changes_tokens ? std::nullopt : follower.rows;
}

}  // namespace accel::train
