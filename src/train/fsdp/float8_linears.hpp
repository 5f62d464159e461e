#pragma once

#include <torch/csrc/jit/api/module.h>

#include <string>
#include <vector>

#include "core/config/config.hpp"
#include "plan/linear_plan.hpp"
#include "train/graph/run/module_linear.hpp"

namespace accel::train {

/// Makes linears of a model compute in float8 for as long as this lives.
class Float8Linears {
 public:
  /// Changes the code of those linears of `root` that `plan` chooses. Construct it before the first run, and
  /// before methods are rewritten.
  Float8Linears(const torch::jit::Module& root, LinearPlan plan, config::Float8Recipe recipe);

  /// The plan, in which a linear whose code has no product of its weight stays as it is.
  [[nodiscard]] const LinearPlan& plan() const { return plan_; }
  /// Names the modules that multiply by a weight of their own as a linear does, and that the plan does not
  /// have because of the name of their class; empty if there are none.
  [[nodiscard]] std::string warning_of_names() const;

 private:
  LinearPlan plan_;
  std::vector<std::string> other_names_;  ///< The modules of warning_of_names().
  LinearRegistration registration_;
};

}  // namespace accel::train
