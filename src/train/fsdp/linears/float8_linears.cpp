#include "train/fsdp/linears/float8_linears.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "plan/linears/float8_gather.hpp"
#include "structure/structure.hpp"
#include "train/graph/passes/replace_linears.hpp"
#include "train/graph/run/float8_linear.hpp"

namespace accel::train {
namespace {

Float8Rules rules_of(config::Float8Recipe recipe) {
  return {.rowwise = recipe != config::Float8Recipe::kTensorwise,
          .plain_weight_gradient = recipe == config::Float8Recipe::kRowwiseWithGwHp};
}

using LinearFunctions = std::unordered_map<const c10::ivalue::Object*, LinearFunction>;

/// Replaces the products of the chosen linears and corrects `plan` where there is none.
void replace_products(const torch::jit::Module& root, LinearPlan& plan) {
  const std::vector<std::string> without_product = replace_linears(root, float8_modules(plan));
  for (PlannedLinear& linear : plan.linears) {
    if (std::find(without_product.begin(), without_product.end(), linear.module) != without_product.end())
      linear.kept_reason = "its code has no product of its weight";
  }
}

void require_products_alone(const torch::jit::Module& root, const LinearPlan& plan) {
  const std::vector<std::string> others = modules_with_other_use(root, float8_modules(plan));
  if (others.empty()) return;
  throw Error(
      ErrorKind::kUsage,
      fmt::format("the weight of '{}' is to be gathered in float8, and the code of the module uses it "
                  "for something else than its product",
                  text_of_module(others.front())))
      .hint(kWithoutFloat8Gather);
}

/// The functions of the chosen linears. `gathered` says at each call which weights were gathered in float8.
template <class Gathered>
LinearFunctions functions_of(const torch::jit::Module& root, const LinearPlan& plan,
                             config::Float8Recipe recipe, const std::shared_ptr<Gathered>& gathered) {
  const std::unordered_set<std::string> modules = float8_modules(plan);
  const Float8Rules rules = rules_of(recipe);
  LinearFunctions functions;
  for (const auto& module : root.named_modules()) {
    if (!modules.contains(module.name)) continue;
    functions[module.value._ivalue().get()] =
        [rules, gathered](const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) {
          const auto found = gathered->find(weight.unsafeGetTensorImpl());
          return float8_linear(input, weight, bias, rules,
                               found == gathered->end() ? Float8Matrix() : found->second);
        };
  }
  return functions;
}

/// The plan of the model as its code allows it, which is changed.
LinearPlan applied(const torch::jit::Module& root, LinearPlan plan, const config::Float8Config& config) {
  replace_products(root, plan);
  if (config.gathers_float8) require_products_alone(root, plan);
  return plan;
}

std::vector<std::string> other_names(const torch::jit::Module& root, const LinearPlan& plan) {
  std::unordered_set<std::string> planned;
  for (const PlannedLinear& linear : plan.linears) planned.insert(linear.module);
  std::vector<std::string> others;
  for (const std::string& module : modules_with_product(root)) {
    if (!planned.contains(module)) others.push_back(module);
  }
  return others;
}

}  // namespace

Float8Linears::Float8Linears(const torch::jit::Module& root, LinearPlan plan,
                             const config::Float8Config& config)
    : other_names_(other_names(root, plan)),
      plan_(applied(root, std::move(plan), config)),
      gathered_(std::make_shared<GatheredWeights>()),
      registration_(functions_of(root, plan_, config.recipe, gathered_)) {}

void Float8Linears::use_gathered(const at::Tensor& weight, Float8Matrix gathered) {
  (*gathered_)[weight.unsafeGetTensorImpl()] = std::move(gathered);
}

std::string Float8Linears::warning_of_names() const {
  if (other_names_.empty()) return "";
  constexpr std::size_t kNamed = 4;
  std::vector<std::string> named;
  for (std::size_t i = 0; i < std::min(kNamed, other_names_.size()); ++i)
    named.push_back(fmt::format("'{}'", text_of_module(other_names_[i])));
  return fmt::format(
      "these modules multiply by a weight of their own and do not compute in float8, because the name of "
      "their class does not end in 'Linear': {}{}. Accelerate converts those that are derived from "
      "torch.nn.Linear; to convert them here, export them with such a name",
      fmt::join(named, ", "), other_names_.size() > kNamed ? " and others" : "");
}

}  // namespace accel::train
