#pragma once

#include <string>
#include <vector>

#include "core/config.hpp"
#include "train/model/structure.hpp"

namespace accel::train {

/// A wrapped submodule and the parameters that it gathers and frees.
struct UnitPlan {
  std::string module;  ///< Its path; empty for the root.
  std::string class_name;
  std::vector<std::size_t> parameters;  ///< Indices into ModelStructure::parameters, in module order.

  [[nodiscard]] bool is_root() const { return module.empty(); }
};

/// The units of a model under a wrap policy, bottom-up (post-order, siblings in registration order), the root
/// last.
///
/// A parameter belongs to the innermost unit around it; one that is shared by two units, or foreign, belongs
/// to the root. Throws what wrapped_modules does. The model has at least one parameter that requires grad, or
/// it is an Error of kind kUsage.
std::vector<UnitPlan> plan_units(const ModelStructure& model, const core::FsdpConfig& config);

}  // namespace accel::train
