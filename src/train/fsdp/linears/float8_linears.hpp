#pragma once

#include <torch/csrc/jit/api/module.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/config/config.hpp"
#include "plan/linears/linear_plan.hpp"
#include "train/graph/run/float8_cast.hpp"
#include "train/graph/run/module_linear.hpp"

namespace accel::train {

/// Makes linears of a model compute in float8 for as long as this lives.
class Float8Linears {
 public:
  /// Changes the code of those linears of `root` that `plan` chooses. Construct it before the first run, and
  /// before methods are rewritten. If the configuration gathers weights in float8, a linear whose own code
  /// uses its weight for something else than its product is an Error of kind kUsage.
  Float8Linears(const torch::jit::Module& root, LinearPlan plan, const config::Float8Config& config);

  /// The plan, in which a linear whose code has no product of its weight stays as it is.
  [[nodiscard]] const LinearPlan& plan() const { return plan_; }
  /// Names the modules that multiply by a weight of their own as a linear does, and that the plan does not
  /// have because of the name of their class; empty if there are none.
  [[nodiscard]] std::string warning_of_names() const;

  /// Makes linears multiply by `gathered` in place of `weight`, the parameter of the module.
  void use_gathered(const at::Tensor& weight, Float8Matrix gathered);

 private:
  using GatheredWeights = std::unordered_map<const at::TensorImpl*, Float8Matrix>;

  std::vector<std::string> other_names_;  ///< The modules of warning_of_names().
  LinearPlan plan_;
  std::shared_ptr<GatheredWeights> gathered_;  ///< By parameter; shared with the functions of the modules.
  LinearRegistration registration_;
};

}  // namespace accel::train
