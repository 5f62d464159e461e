#pragma once

#include <string>
#include <unordered_set>

#include "plan/linears/linear_plan.hpp"
#include "structure/structure.hpp"

namespace accel {

/// The paths of the modules that compute in float8.
[[nodiscard]] std::unordered_set<std::string> float8_modules(const LinearPlan& plan);

/// Marks the weights of the float8 linears of `plan` as gathered in float8 (ParameterInfo::gathers_float8).
/// `apart` is the structure of the same model with float8_modules() as units: its `cross_unit` marks the
/// weights that the code of another module reads.
///
/// Such a weight has no values in the dtype of the parameters, so that nothing but its linear may use it. It
/// is an Error of kind kUsage if another module reads it, or if it is tied to a parameter of another module.
/// torchao makes separate weights of tied ones, without saying so, when it gathers in float8.
[[nodiscard]] ModelStructure with_float8_gather(ModelStructure model, const LinearPlan& plan,
                                                const ModelStructure& apart);

/// What a user can do if a weight cannot be gathered in float8; for hints of errors.
inline constexpr const char* kWithoutFloat8Gather =
    "set fp8_config.enable_fsdp_float8_all_gather to false: weights are gathered in bfloat16, and each rank "
    "converts them";

}  // namespace accel
