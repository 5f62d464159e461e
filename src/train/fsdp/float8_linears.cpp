#include "train/fsdp/float8_linears.hpp"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "train/graph/passes/replace_linears.hpp"
#include "train/graph/run/float8_linear.hpp"

namespace accel::train {
namespace {

Float8Rules rules_of(config::Float8Recipe recipe) {
  return {.rowwise = recipe != config::Float8Recipe::kTensorwise,
          .plain_weight_gradient = recipe == config::Float8Recipe::kRowwiseWithGwHp};
}

std::unordered_set<std::string> float8_modules(const LinearPlan& plan) {
  std::unordered_set<std::string> modules;
  for (const PlannedLinear& linear : plan.linears) {
    if (linear.is_float8()) modules.insert(linear.module);
  }
  return modules;
}

using LinearFunctions = std::unordered_map<const c10::ivalue::Object*, LinearFunction>;

/// Replaces the products of the chosen linears and corrects `plan` where there is none.
LinearFunctions functions_of(const torch::jit::Module& root, LinearPlan& plan, config::Float8Recipe recipe) {
  const std::vector<std::string> without_product = replace_linears(root, float8_modules(plan));
  for (PlannedLinear& linear : plan.linears) {
    if (std::find(without_product.begin(), without_product.end(), linear.module) != without_product.end())
      linear.kept_reason = "its code has no product of its weight";
  }
  const std::unordered_set<std::string> modules = float8_modules(plan);
  const Float8Rules rules = rules_of(recipe);
  LinearFunctions functions;
  for (const auto& module : root.named_modules()) {
    if (!modules.contains(module.name)) continue;
    functions[module.value._ivalue().get()] = [rules](const at::Tensor& input, const at::Tensor& weight,
                                                      const at::Tensor& bias) {
      return float8_linear(input, weight, bias, rules);
    };
  }
  return functions;
}

}  // namespace

Float8Linears::Float8Linears(const torch::jit::Module& root, LinearPlan plan, config::Float8Recipe recipe)
    : plan_(std::move(plan)), registration_(functions_of(root, plan_, recipe)) {}

}  // namespace accel::train
