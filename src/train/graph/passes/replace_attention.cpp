#include "train/graph/passes/replace_attention.hpp"

#include <fmt/format.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "base/error.hpp"
#include "train/graph/analysis/attribute_path.hpp"
#include "train/graph/passes/own_weight.hpp"
#include "train/graph/run/module_attention.hpp"

namespace accel::train {
namespace {

using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;

c10::Symbol attention_symbol() { return c10::Symbol::fromQualString(kModuleAttention); }

std::vector<Node*> all_of(Graph& graph, c10::Symbol kind) {
  return torch::jit::findAllNodes(graph, kind, /*recurse=*/true);
}

void replace(Graph& graph, std::int64_t& number) {
  for (Node* node : all_of(graph, c10::aten::scaled_dot_product_attention)) {
    const torch::jit::WithInsertPoint here(node);
    std::vector<Value*> inputs = {graph.inputs().at(0), graph.insertConstant(number++)};
    inputs.insert(inputs.end(), node->inputs().begin(), node->inputs().end());
    Node* call = graph.insertNode(graph.create(attention_symbol(), inputs, 1));
    call->output()->setType(c10::TensorType::get());
    call->setSourceRange(node->sourceRange());
    node->output()->replaceAllUsesWith(call->output());
    node->destroy();
  }
  graph.lint();
}

/// Replaces a call by a copy of the function's code as it is. torch::jit::Inline() would take the executor's,
/// which would then stay what it is now.
void inline_call(Node* call, torch::jit::Function& function) {
  torch::jit::GraphFunction& callee = torch::jit::toGraphFunction(function);
  torch::jit::inlineCallTo(call, &callee, callee.graph().get());
}

/// Replaces each call of a method or a function by its code.
void inline_calls(Graph& graph) {
  for (bool again = true; again;) {
    again = false;
    for (Node* call : all_of(graph, c10::prim::CallFunction)) {
      torch::jit::Function* function = call->input(0)->type()->expectRef<c10::FunctionType>().function();
      if (!function->isGraphFunction()) continue;
      call->removeInput(0);
      inline_call(call, *function);
      again = true;
    }
    for (Node* call : all_of(graph, c10::prim::CallMethod)) {
      const auto type = call->input(0)->type()->cast<c10::ClassType>();
      torch::jit::Function* method = type == nullptr ? nullptr : type->findMethod(call->s(c10::attr::name));
      if (method == nullptr || !method->isGraphFunction()) {
        throw Error(ErrorKind::kUsage,
                    fmt::format("forward calls '{}' of a module that is not known before it runs, so that "
                                "its attention cannot be found",
                                call->s(c10::attr::name)))
            .hint("export the model without module interfaces, or set parallelism_config.sp_size: 1");
      }
      inline_call(call, *method);
      again = true;
    }
  }
}

AttentionPlace place_of(const Node* attention) {
  const auto path = attribute_path(attention->input(kAttentionSelf));
  if (!path) {
    throw Error(ErrorKind::kUsage, "an attention is in a module that is not an attribute of the model")
        .hint("set parallelism_config.sp_size: 1, or export the model with such modules as attributes");
  }
  return {*path, torch::jit::toIValue(attention->input(kAttentionNumber))->toInt(), std::nullopt};
}

/// The sizes of a lookup are those of its indices. A traced model reads the length of a sequence from its
/// embedding, which masks must not depend on.
void read_sizes_of_indices(Graph& graph) {
  for (Node* node : all_of(graph, c10::aten::size)) {
    if (node->inputs().size() != 2 || node->input(0)->node()->kind() != c10::aten::embedding) continue;
    const auto dimension = torch::jit::toIValue(node->input(1));
    const bool is_of_indices =
        dimension && dimension->isInt() && (dimension->toInt() == 0 || dimension->toInt() == 1);
    if (is_of_indices) node->replaceInput(0, node->input(0)->node()->input(1));
  }
}

/// Removes what no output needs. What has effects beside its results is removed, too.
void remove_dead(const std::shared_ptr<Graph>& graph) {
  torch::jit::EliminateDeadCode(graph,
                                torch::jit::DCESideEffectPolicy::ALLOW_DELETING_NODES_WITH_SIDE_EFFECTS);
}

[[noreturn]] void fail_of_mask(const std::string& module, const std::string& why) {
  throw Error(
      ErrorKind::kUsage,
      fmt::format("the attention mask of '{}' {}, so that it cannot be computed for the whole sequence",
                  module.empty() ? "(root)" : module, why))
      .hint("set parallelism_config.sp_size: 1, or export a model whose masks depend on its inputs alone");
}

/// Cuts the computation of the outputs behind the first one, which are masks, out of a copy of `inlined`.
std::shared_ptr<Graph> masks_of(Graph& inlined, const torch::jit::Module& root, const AttentionCode& code) {
  std::shared_ptr<Graph> graph = inlined.copy();
  Node* tuple = graph->createTuple(graph->outputs().slice(1));
  graph->appendNode(tuple);
  while (!graph->outputs().empty()) graph->eraseOutput(0);
  graph->registerOutput(tuple->output());
  // An attention counts as something that may write anywhere.
  for (Node* attention : all_of(*graph, attention_symbol())) {
    attention->output()->replaceAllUsesWith(attention->input(kAttentionQuery));
    attention->destroy();
  }
  read_sizes_of_indices(*graph);
  remove_dead(graph);
  std::unordered_set<std::string> parameters;
  for (const auto& parameter : root.named_parameters()) parameters.insert(parameter.name);
  for (const Node* node : all_of(*graph, c10::prim::GetAttr)) {
    const auto path = attribute_path(node->output());
    if (!path || !parameters.contains(*path)) continue;
    const auto masked = std::find_if(code.places.begin(), code.places.end(),
                                     [](const AttentionPlace& place) { return place.mask.has_value(); });
    fail_of_mask(masked->module, fmt::format("depends on the parameter '{}'", *path));
  }
  graph->lint();
  return graph;
}

std::shared_ptr<Graph> without_masks(Graph& inlined) {
  std::shared_ptr<Graph> graph = inlined.copy();
  while (graph->outputs().size() > 1) graph->eraseOutput(1);
  for (Node* attention : all_of(*graph, attention_symbol())) {
    const torch::jit::WithInsertPoint here(attention);
    attention->replaceInput(kAttentionMask, graph->insertConstant(c10::IValue()));
  }
  remove_dead(graph);
  return graph;
}

}  // namespace

void call_module_attention(const torch::jit::Module& root) {
  std::unordered_set<const c10::ClassType*> done;  // Instances of one class share its methods.
  for (const auto& module : root.named_modules()) {
    if (!done.insert(module.value.type().get()).second) continue;
    std::int64_t number = 0;
    for_each_method(*module.value.type(), [&](Graph& graph) { replace(graph, number); });
  }
}

AttentionCode replace_attention(const torch::jit::Module& root) {
  call_module_attention(root);
  AttentionCode code;
  const std::shared_ptr<Graph> inlined =
      torch::jit::toGraphFunction(root.get_method("forward").function()).graph()->copy();
  inline_calls(*inlined);
  std::vector<Value*> masks;
  for (const Node* attention : all_of(*inlined, attention_symbol())) {
    AttentionPlace& place = code.places.emplace_back(place_of(attention));
    Value* mask = attention->input(kAttentionMask);
    if (mask->mustBeNone()) continue;
    if (mask->node()->owningBlock() != inlined->block()) fail_of_mask(place.module, "is made in a branch");
    const auto known = std::find(masks.begin(), masks.end(), mask);
    place.mask = static_cast<std::size_t>(known - masks.begin());
    if (known == masks.end()) masks.push_back(mask);
  }
  for (Value* mask : masks) inlined->registerOutput(mask);
  if (!masks.empty()) code.masks = masks_of(*inlined, root, code);
  code.rest = without_masks(*inlined);
  return code;
}

}  // namespace accel::train
