#pragma once

#include <string>
#include <vector>

#include "core/config/config.hpp"
#include "structure/structure.hpp"

namespace accel {

/// A linear of a model: a module whose class ends in "Linear" and which has a `weight` of two dimensions, as
/// torch.nn.Linear and the classes derived from it have.
struct PlannedLinear {
  std::string module;       ///< The path of the module.
  std::string kept_reason;  ///< Why the linear stays as it is; empty if it computes in float8.
  /// The first path of the module if `module` is another path of it (plan/units/module_repeats.hpp).
  std::string repeats = {};

  [[nodiscard]] bool is_float8() const { return kept_reason.empty(); }
};

/// The linears of a model in the order of torch's named_modules(remove_duplicate=False): a linear with
/// several paths is there under each of them, and counts once.
struct LinearPlan {
  std::vector<PlannedLinear> linears;

  [[nodiscard]] std::size_t count() const;
  [[nodiscard]] std::size_t float8_count() const;
  /// Says how many linears compute in float8, for example "10 of 12 linears compute in float8".
  [[nodiscard]] std::string summary() const;
  /// Says that no linear computes in float8 and why; empty if one does.
  [[nodiscard]] std::string warning() const;
};

/// Chooses the linears that compute in float8 as Accelerate does for torchao. The first and the last stay as
/// they are, and so do those with a size that is not a multiple of 16. A filter of the configuration takes
/// the place of the first and the last. A linear that is held by several attributes is replaced where torchao
/// replaces it: in an attribute that named_children() comes to. A word of the filter that no linear's path
/// contains is an Error of kind kUsage.
[[nodiscard]] LinearPlan plan_linears(const ModelStructure& model, const config::Float8Config& config);

}  // namespace accel
