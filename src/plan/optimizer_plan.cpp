#include "plan/optimizer_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.hpp"

namespace accel {
namespace {

constexpr std::array kAdam = {OptimizerTensor{"exp_avg"}, OptimizerTensor{"exp_avg_sq"}};

constexpr std::array kPlans = {OptimizerPlan{"adamw", kAdam}};

}  // namespace

const OptimizerPlan& optimizer_plan(std::string_view type) {
  const auto* const found = std::find_if(kPlans.begin(), kPlans.end(),
                                         [&](const OptimizerPlan& plan) { return plan.type == type; });
  if (found == kPlans.end())
    throw Error(ErrorKind::kUsage, fmt::format("the optimizer '{}' is not supported", type));
  return *found;
}

}  // namespace accel
