#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace accel::config {

/// The options of an optimizer, under torch's names. Each optimizer has some of them.
struct OptimizerOptions {
  std::optional<double> weight_decay;
  std::optional<std::array<double, 2>> betas;
  std::optional<double> eps;
  std::optional<double> momentum;
  std::optional<double> dampening;
  std::optional<bool> nesterov;
  std::optional<bool> amsgrad;
  std::optional<double> alpha;
  std::optional<bool> centered;
  std::optional<double> lr_decay;
  std::optional<double> initial_accumulator_value;
  std::optional<double> eps2;
  std::optional<double> beta2_decay;
  std::optional<double> d;
  std::string adjust_lr_fn;  ///< Empty if it is not set.
};

/// A value of training.optimizer.type.
struct OptimizerKind {
  std::string_view name;
  /// A value for each option that the optimizer has, torch's default.
  OptimizerOptions defaults;
};

/// The kind of a name; nullptr if there is none.
const OptimizerKind* find_optimizer(std::string_view name);

/// The names as choices of a key. optimizers.cpp has a row for each.
inline constexpr std::string_view kOptimizerNames =
    "adamw|adam|sgd|adagrad|rmsprop|lion|muon|adafactor|adamw8bit";

/// `options`, and for each option that the optimizer has and that is not set there its default. Options that
/// the optimizer does not have are left out.
OptimizerOptions complete_options(const OptimizerKind& kind, const OptimizerOptions& options);

/// Parameters that are trained otherwise than the rest.
struct ParameterGroup {
  /// A regular expression that is found in the names of the parameters (NamePattern::is_found_in).
  std::string match;
  std::optional<double> lr;            ///< Without it, training.optimizer.lr.
  std::optional<double> weight_decay;  ///< It holds for all parameters of the group, also those of no_decay.
  bool frozen = false;                 ///< The parameters keep their values.
  std::string optimizer;               ///< Another optimizer, with its own defaults; empty for the run's.
};

}  // namespace accel::config
