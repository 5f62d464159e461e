#include "train/fsdp/tensor_linears.hpp"

#include <fmt/format.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/ir.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/error.hpp"
#include "train/graph/analysis/cross_unit_reads.hpp"
#include "train/graph/passes/check_views.hpp"
#include "train/graph/passes/replace_embeddings.hpp"
#include "train/graph/passes/replace_linears.hpp"

namespace accel::train {
namespace {

using torch::jit::Block;
using torch::jit::Node;
using torch::jit::Value;

bool is_embedding(TensorStyle style) {
  return style == TensorStyle::kEmbeddingRowwise || style == TensorStyle::kEmbeddingColwise;
}

bool is_colwise(TensorStyle style) {
  return style == TensorStyle::kColwise || style == TensorStyle::kColwiseGather;
}

/// The modules of the plan that are cut: linears, or embeddings.
std::unordered_map<std::string, TensorStyle> cut_modules(const TensorPlan& plan, bool embeddings) {
  std::unordered_map<std::string, TensorStyle> modules;
  for (const TensorModule& module : plan.modules) {
    if (module.style != TensorStyle::kSummedGradient && is_embedding(module.style) == embeddings)
      modules.emplace(module.module, module.style);
  }
  return modules;
}

std::unordered_set<std::string> names_of(const std::unordered_map<std::string, TensorStyle>& modules) {
  std::unordered_set<std::string> names;
  for (const auto& [name, style] : modules) names.insert(name);
  return names;
}

/// Whether a use of a weight is the product or the lookup, or asks what is the same for a part. A fused head
/// is run with a part only if its linear has the style kColwiseGather.
bool is_fine(const Node* user) {
  static const auto kHead = c10::Symbol::fromQualString(kFusedHead);
  static const auto kLinear = c10::Symbol::fromQualString(kModuleLinear);
  static const auto kEmbedding = c10::Symbol::fromQualString(kModuleEmbedding);
  return user->kind() == kLinear || user->kind() == kEmbedding || user->kind() == kHead ||
         user->kind() == c10::prim::dtype || user->kind() == c10::prim::device;
}

/// The operator in a block that does something else with the weight of the module `self`; null for none.
const Node* other_use(const Block* block, const Value* self) {
  for (const Node* node : block->nodes()) {
    for (const Block* inner : node->blocks()) {
      if (const Node* found = other_use(inner, self)) return found;
    }
    const bool reads =
        node->kind() == c10::prim::GetAttr && node->input() == self && node->s(c10::attr::name) == "weight";
    if (!reads) continue;
    for (const torch::jit::Use& use : node->output()->uses()) {
      if (!is_fine(use.user)) return use.user;
    }
  }
  return nullptr;
}

/// Throws unless the methods of the module compute with its weight what the plan replaces, and nothing else.
void require_no_other_use(const torch::jit::Module& module, const std::string& name, TensorStyle style) {
  for (torch::jit::Function* method : module.type()->methods()) {
    if (!method->isGraphFunction()) continue;
    const torch::jit::Graph& graph = *torch::jit::toGraphFunction(*method).graph();
    const Node* other = other_use(graph.block(), graph.inputs().at(0));
    if (other == nullptr) continue;
    throw Error(ErrorKind::kUsage,
                fmt::format("the plan of tensor parallelism gives module '{}' the style {}, and its method "
                            "'{}' uses the whole weight in {}",
                            name, name_of(style), method->name(), other->kind().toDisplayString()))
        .hint("leave the module out of the plan");
  }
}

[[noreturn]] void fail_without_product(const std::string& module, TensorStyle style) {
  throw Error(ErrorKind::kUsage,
              fmt::format("the plan of tensor parallelism gives module '{}' the style {}, and its code has "
                          "no {} its own weight",
                          module, name_of(style), is_embedding(style) ? "lookup in" : "linear with"))
      .hint("leave the module out of the plan");
}

template <class Function>
using ByObject = std::unordered_map<const c10::ivalue::Object*, Function>;

/// Replaces the products of the plan's linears and returns what they compute.
ByObject<LinearFunction> linear_functions(const torch::jit::Module& root, const TensorPlan& plan,
                                          TensorProducts& products, PartRandom& random, int rank) {
  const auto modules = cut_modules(plan, /*embeddings=*/false);
  for (const std::string& module : replace_linears(root, names_of(modules)))
    fail_without_product(module, modules.at(module));
  ByObject<LinearFunction> functions;
  for (const auto& module : root.named_modules()) {
    const auto found = modules.find(module.name);
    if (found == modules.end()) continue;
    const TensorStyle style = found->second;
    require_no_other_use(module.value, module.name, style);
    functions[module.value._ivalue().get()] = [&products, &random, rank, root, style](
                                                  const at::Tensor& input, const at::Tensor& weight,
                                                  const at::Tensor& bias) {
      if (style == TensorStyle::kColwise && root.is_training()) random.enter(input.device(), rank);
      if (style == TensorStyle::kRowwise) random.leave();
      return products.linear(style, input, weight, bias);
    };
  }
  return functions;
}

ByObject<EmbeddingFunction> embedding_functions(const torch::jit::Module& root, const TensorPlan& plan,
                                                TensorProducts& products) {
  const auto modules = cut_modules(plan, /*embeddings=*/true);
  for (const std::string& module : replace_embeddings(root, names_of(modules)))
    fail_without_product(module, modules.at(module));
  ByObject<EmbeddingFunction> functions;
  for (const auto& module : root.named_modules()) {
    const auto found = modules.find(module.name);
    if (found == modules.end()) continue;
    const TensorStyle style = found->second;
    require_no_other_use(module.value, module.name, style);
    functions[module.value._ivalue().get()] =
        [&products, style](const at::Tensor& table, const at::Tensor& indices, std::int64_t padding_index) {
          return products.embedding(style, table, indices, padding_index);
        };
  }
  return functions;
}

}  // namespace

void require_own_reads(const torch::jit::Module& root, const TensorPlan& plan) {
  std::unordered_map<std::string, TensorStyle> modules = cut_modules(plan, /*embeddings=*/false);
  modules.merge(cut_modules(plan, /*embeddings=*/true));
  const std::unordered_set<const at::TensorImpl*> read = cross_unit_reads(root, names_of(modules));
  for (const auto& module : root.named_modules()) {
    const auto style = modules.find(module.name);
    if (style == modules.end()) continue;
    for (const auto& parameter : module.value.named_parameters(/*recurse=*/false)) {
      const bool is_cut =
          parameter.name == "weight" || (is_colwise(style->second) && parameter.name == "bias");
      if (!is_cut || !read.contains(parameter.value.unsafeGetTensorImpl())) continue;
      throw Error(ErrorKind::kUsage,
                  fmt::format("the plan of tensor parallelism cuts '{}.{}', which another module reads",
                              module.name, parameter.name))
          .hint("leave the module out of the plan, or export a model that calls the module instead");
    }
  }
}

TensorLinears::TensorLinears(const torch::jit::Module& root, const TensorPlan& plan, Group& tp)
    : products_(std::make_unique<TensorProducts>(tp)),
      random_(std::make_unique<PartRandom>()),
      linears_(linear_functions(root, plan, *products_, *random_, tp.rank())),
      embeddings_(embedding_functions(root, plan, *products_)),
      views_([products = products_.get()](const at::Tensor& tensor,
                                          at::IntArrayRef sizes) { products->require_heads(tensor, sizes); },
             [products = products_.get()](const at::Tensor& tensor, std::int64_t dim) {
               products->require_uncut(tensor, dim);
             }) {
  check_views(root);
}

HeadFunction TensorLinears::with_logits(const HeadFunction& head) const {
  return [&head, products = products_.get()](const at::Tensor& hidden, const at::Tensor& weight,
                                             const at::Tensor& bias) {
    const at::Tensor result = head(hidden, weight, bias);
    return result.defined() ? result : products->linear(TensorStyle::kColwiseGather, hidden, weight, bias);
  };
}

}  // namespace accel::train
