#pragma once

#include <set>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "core/config/config.hpp"
#include "structure/structure.hpp"

namespace accel {

/// A wrapped submodule and the parameters that it gathers and frees.
struct UnitPlan {
  std::string module;  ///< The path of the module; empty for the root.
  std::string class_name;
  std::vector<std::size_t> parameters;  ///< Indices into ModelStructure::parameters, in module order.
  /// The root and heads stay gathered from forward to backward, whatever the configuration says.
  bool stays_gathered = false;
  bool checkpoints = true;  ///< Activation checkpointing may apply: to units of the wrap policy only.

  [[nodiscard]] bool is_root() const { return module.empty(); }
};

/// The paths of all units of a model but the root: those of the wrap policy, and
/// embedding_and_head_units.hpp's. Of a model whose parameters read across units are not known yet these are
/// all that may read or be read past a boundary.
std::unordered_set<std::string> unit_modules(const ModelStructure& model, const config::FsdpConfig& config);

/// The units of a model, unit_modules() and the root, bottom-up (post-order, siblings in registration order),
/// the root last.
///
/// A parameter belongs to the innermost unit around it; one that is shared by two units, or read across
/// units, belongs to the root. Throws what wrapped_modules does. The model has at least one parameter that
/// requires grad, or it is an Error of kind kUsage.
std::vector<UnitPlan> plan_units(const ModelStructure& model, const config::FsdpConfig& config);

/// Throws Error (kUsage) if a unit is inside one of the layers that run compiled code. The code runs no
/// module inside its layer, so that nothing would gather the parameters of the unit.
void require_no_unit_inside(const std::set<std::string>& compiled_layers, std::span<const UnitPlan> units);

}  // namespace accel
