#include "core/config/optimizers.hpp"

#include <algorithm>
#include <limits>
#include <vector>

namespace accel::config {
namespace {

constexpr std::array<double, 2> kAdamBetas = {0.9, 0.999};

const std::vector<OptimizerKind>& kinds() {
  static const std::vector<OptimizerKind> kKinds = {
      {"adamw", {.weight_decay = 0.01, .betas = kAdamBetas, .eps = 1e-8, .amsgrad = false}},
      {"adam", {.weight_decay = 0, .betas = kAdamBetas, .eps = 1e-8, .amsgrad = false}},
      {"sgd", {.weight_decay = 0, .momentum = 0, .dampening = 0, .nesterov = false}},
      {"adagrad", {.weight_decay = 0, .eps = 1e-10, .lr_decay = 0, .initial_accumulator_value = 0}},
      {"rmsprop", {.weight_decay = 0, .eps = 1e-8, .momentum = 0, .alpha = 0.99, .centered = false}},
      // torch has no Lion. These are the values of Chen et al., "Symbolic Discovery of Optimization
      // Algorithms", 2023, and of its authors' program.
      {"lion", {.weight_decay = 0, .betas = std::array{0.9, 0.99}}},
      // betas and eps are those of the AdamW for the parameters that are no matrices.
      {"muon",
       {.weight_decay = 0.1,
        .betas = kAdamBetas,
        .eps = 1e-8,
        .momentum = 0.95,
        .nesterov = true,
        .adjust_lr_fn = "original"}},
      {"adamw8bit", {.weight_decay = 0.01, .betas = kAdamBetas, .eps = 1e-8}},
      // torch's eps is the pair (None, 1e-3), in which None stands for the float32 epsilon.
      {"adafactor",
       {.weight_decay = 0,
        .eps = std::numeric_limits<float>::epsilon(),
        .eps2 = 1e-3,
        .beta2_decay = -0.8,
        .d = 1}},
  };
  return kKinds;
}

/// Calls `visit` with each pair of equal options that are optionals.
template <class First, class Second, class Visit>
void for_each_option(First& a, Second& b, const Visit& visit) {
  visit(a.weight_decay, b.weight_decay);
  visit(a.betas, b.betas);
  visit(a.eps, b.eps);
  visit(a.momentum, b.momentum);
  visit(a.dampening, b.dampening);
  visit(a.nesterov, b.nesterov);
  visit(a.amsgrad, b.amsgrad);
  visit(a.alpha, b.alpha);
  visit(a.centered, b.centered);
  visit(a.lr_decay, b.lr_decay);
  visit(a.initial_accumulator_value, b.initial_accumulator_value);
  visit(a.eps2, b.eps2);
  visit(a.beta2_decay, b.beta2_decay);
  visit(a.d, b.d);
}

}  // namespace

const OptimizerKind* find_optimizer(std::string_view name) {
  const auto found = std::find_if(kinds().begin(), kinds().end(),
                                  [&](const OptimizerKind& kind) { return kind.name == name; });
  return found == kinds().end() ? nullptr : &*found;
}

OptimizerOptions complete_options(const OptimizerKind& kind, const OptimizerOptions& options) {
  OptimizerOptions result = kind.defaults;
  for_each_option(result, options, [](auto& value, const auto& set) {
    if (value && set) value = set;
  });
  if (!result.adjust_lr_fn.empty() && !options.adjust_lr_fn.empty())
    result.adjust_lr_fn = options.adjust_lr_fn;
  return result;
}

}  // namespace accel::config
