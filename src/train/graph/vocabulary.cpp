#include "train/graph/vocabulary.hpp"

#include <ATen/core/Tensor.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/ir.h>

#include <algorithm>
#include <array>
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
  bool is_tokens = false;            ///< It holds tokens of the input, and nothing else.
  std::optional<c10::IValue> value;  ///< A module, or a parameter.
};

/// Operators whose result holds elements of their first argument, and no others.
bool only_rearranges(c10::Symbol kind) {
  static constexpr std::array kKinds = {
      c10::aten::view,      c10::aten::reshape,   c10::aten::contiguous, c10::aten::flatten,
      c10::aten::unsqueeze, c10::aten::squeeze,   c10::aten::transpose,  c10::aten::permute,
      c10::aten::expand,    c10::aten::slice,     c10::aten::select,     c10::aten::narrow,
      c10::aten::detach,    c10::aten::clone,     c10::aten::to,         c10::aten::t,
      c10::aten::alias,     c10::aten::expand_as, c10::aten::view_as,    c10::prim::unchecked_cast};
  return std::find(kKinds.begin(), kKinds.end(), kind) != kKinds.end();
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
      } else if (node->kind() == c10::aten::embedding) {
        const Known table = known[node->input(0)];
        if (!conditional && known[node->input(1)].is_tokens && table.value && table.value->isTensor()) {
          const std::int64_t found = table.value->toTensor().size(0);
          rows = rows ? std::min(*rows, found) : found;
        }
      } else if (only_rearranges(node->kind()) && known[node->input(0)].is_tokens) {
        known[node->output()].is_tokens = true;
      }
    }
  }

  /// Tokens come out where every branch gives tokens.
  static void join_branches(const Node* node, Knowledge& known) {
    for (std::size_t i = 0; i < node->outputs().size(); ++i) {
      known[node->outputs()[i]].is_tokens =
          std::all_of(node->blocks().begin(), node->blocks().end(),
                      [&](const Block* branch) { return known[branch->outputs()[i]].is_tokens; });
    }
  }

  /// Only calls that get tokens are followed: all others cannot look them up.
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
  return follower.rows;
}

}  // namespace accel::train
