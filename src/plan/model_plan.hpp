#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/config/config.hpp"
#include "plan/layout/optimizer_plan.hpp"
#include "plan/linears/linear_plan.hpp"
#include "plan/linears/tensor_plan.hpp"
#include "plan/memory/footprint.hpp"
#include "plan/units/unit_plan.hpp"
#include "structure/archive_model.hpp"
#include "structure/model_notes.hpp"
#include "structure/structure.hpp"

namespace accel {

/// A model file cut into units under a configuration, as the worker does, from the file's structure alone.
struct ModelPlan {
  ModelStructure structure;
  std::vector<UnitPlan> units;
  OptimizerPlan optimizer;            ///< That of the training, if there is one.
  config::FsdpConfig fsdp;            ///< The configuration, completed by with_notes().
  std::optional<LinearPlan> linears;  ///< Set if linears compute in float8.
  std::optional<TensorPlan> tensors;  ///< Set if tensor parallelism cuts parameters.
  /// The layers that run compiled code if it fits the machine: that of a file for other machines is here,
  /// too.
  std::set<std::string> compiled_layers;
  std::vector<std::string> warnings;  ///< What with_notes() and LinearPlan::warning() warn of.
};

/// Throws Error (kUsage) if the notes say that the model computes in another dtype than the run.
void require_dtype(const ModelNotes& notes, const config::PrecisionConfig& precision);

/// A configuration with what the notes of a model file say.
struct NotedConfig {
  config::FsdpConfig fsdp;
  std::vector<std::string> warnings;
};

/// The configuration with the layer classes in the notes of `model`, if the configuration names none. Of
/// several classes those that the model does not have are left out, with a warning. Throws Error (kUsage) if
/// it has none of them, and if the model computes in another dtype than the run.
NotedConfig with_notes(config::FsdpConfig config, const ModelNotes& notes, const ModelStructure& model);

/// Plans the model. The structure has the parts of the first rank of tensor parallelism. Throws Error
/// (kUsage) as parse_notes(), with_notes(), plan_linears(), plan_tensors(), plan_units() and
/// require_no_unit_inside() do.
ModelPlan plan_model(const ArchiveModel& model, const config::Config& config);

/// The footprint of the plan at the configuration's number of ranks. The configuration must have a training
/// section. Throws as the other footprint_of() does.
Footprint footprint_of(const ArchiveModel& model, const ModelPlan& plan, const config::Config& config);

}  // namespace accel
