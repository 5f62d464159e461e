#include "train/fsdp/linears/tensor_linears.hpp"

#include <fmt/format.h>
#include <torch/csrc/jit/ir/ir.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/error.hpp"
#include "train/graph/analysis/cross_unit_reads.hpp"
#include "train/graph/passes/check_views.hpp"
#include "train/graph/passes/own_weight.hpp"
#include "train/graph/passes/part_attention.hpp"
#include "train/graph/passes/replace_embeddings.hpp"
#include "train/graph/passes/replace_linears.hpp"
#include "train/graph/run/own_random.hpp"

namespace accel::train {
namespace {

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
bool is_fine(const torch::jit::Use& use) {
  static const auto kHead = c10::Symbol::fromQualString(kFusedHead);
  static const auto kLinear = c10::Symbol::fromQualString(kModuleLinear);
  static const auto kEmbedding = c10::Symbol::fromQualString(kModuleEmbedding);
  const c10::Symbol kind = use.user->kind();
  return kind == kLinear || kind == kEmbedding || kind == kHead || kind == c10::prim::dtype ||
         kind == c10::prim::device;
}

/// Throws unless the methods of the module compute with its weight what the plan replaces, and nothing else.
void require_no_other_use(const torch::jit::Module& module, const std::string& name, TensorStyle style) {
  const torch::jit::Node* other = other_use_of_weight(*module.type(), is_fine);
  if (other == nullptr) return;
  throw Error(
      ErrorKind::kUsage,
      fmt::format("the plan of tensor parallelism gives module '{}' the style {}, and its code uses the "
                  "whole weight in {}",
                  name, name_of(style), other->kind().toDisplayString()))
      .hint("leave the module out of the plan");
}

[[noreturn]] void fail_without_product(const std::string& module, TensorStyle style) {
  throw Error(ErrorKind::kUsage,
              fmt::format("the plan of tensor parallelism gives module '{}' the style {}, and its code has "
                          "no {} its own weight",
                          module, name_of(style), is_embedding(style) ? "lookup in" : "linear with"))
      .hint("leave the module out of the plan");
}

template <class Function>
using ByObject = typename ModuleFunctions<Function>::ByObject;

/// Replaces what the modules of the plan compute by `replace`, and returns the function of each, which
/// `function_of` has for its style.
template <class Function, class Replace, class FunctionOf>
ByObject<Function> functions_of(const torch::jit::Module& root, const TensorPlan& plan, bool embeddings,
                                const Replace& replace, const FunctionOf& function_of) {
  const auto modules = cut_modules(plan, embeddings);
  for (const std::string& module : replace(root, names_of(modules)))
    fail_without_product(module, modules.at(module));
  ByObject<Function> functions;
  for (const auto& module : root.named_modules()) {
    const auto found = modules.find(module.name);
    if (found == modules.end()) continue;
    require_no_other_use(module.value, module.name, found->second);
    functions[module.value._ivalue().get()] = function_of(found->second);
  }
  return functions;
}

ByObject<LinearFunction> linear_functions(const torch::jit::Module& root, const TensorPlan& plan,
                                          TensorProducts& products) {
  return functions_of<LinearFunction>(
      root, plan, /*embeddings=*/false, replace_linears, [&products](TensorStyle style) {
        return [&products, style](const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) {
          return products.linear(style, input, weight, bias);
        };
      });
}

ByObject<EmbeddingFunction> embedding_functions(const torch::jit::Module& root, const TensorPlan& plan,
                                                TensorProducts& products) {
  return functions_of<EmbeddingFunction>(
      root, plan, /*embeddings=*/true, replace_embeddings, [&products](TensorStyle style) {
        return [&products, style](const at::Tensor& table, const at::Tensor& indices, std::int64_t padding) {
          return products.embedding(style, table, indices, padding);
        };
      });
}

GivesPart gives_part(const TensorPlan& plan) {
  GivesPart result;
  for (const auto& [name, style] : cut_modules(plan, /*embeddings=*/false))
    result.emplace(name, style == TensorStyle::kColwise);
  return result;
}

/// Attention that drops: a rank's heads are others than those of the next rank, and so are their masks.
ByObject<AttentionFunction> attention_functions(const torch::jit::Module& root, const TensorPlan& plan,
                                                int rank) {
  const auto found = find_part_attention(root, gives_part(plan));
  ByObject<AttentionFunction> functions;
  for (const auto& module : root.named_modules()) {
    const auto numbers = found.find(module.name);
    if (numbers == found.end()) continue;
    functions[module.value._ivalue().get()] = [numbers = numbers->second, rank](const AttentionCall& call) {
      const bool is_part = std::find(numbers.begin(), numbers.end(), call.number) != numbers.end();
      if (!is_part || call.dropout == 0) return plain_attention(call);
      const OwnRandom own(call.query.device(), rank);
      return plain_attention(call);
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
      linears_(linear_functions(root, plan, *products_)),
      embeddings_(embedding_functions(root, plan, *products_)),
      attention_(attention_functions(root, plan, tp.rank())),
      views_([products = products_.get()](const at::Tensor& tensor,
                                          at::IntArrayRef sizes) { products->require_heads(tensor, sizes); },
             [products = products_.get()](const at::Tensor& tensor, std::int64_t dim) {
               products->require_uncut(tensor, dim);
             }) {
  check_views(root, gives_part(plan));
}

HeadFunction TensorLinears::with_logits(const HeadFunction& head) const {
  return [&head, products = products_.get()](const at::Tensor& hidden, const at::Tensor& weight,
                                             const at::Tensor& bias) {
    const at::Tensor result = head(hidden, weight, bias);
    return result.defined() ? result : products->linear(TensorStyle::kColwiseGather, hidden, weight, bias);
  };
}

}  // namespace accel::train
