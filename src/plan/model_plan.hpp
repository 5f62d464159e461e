#pragma once

#include <vector>

#include "core/config/config.hpp"
#include "plan/footprint.hpp"
#include "plan/unit_plan.hpp"
#include "structure/archive_model.hpp"
#include "structure/model_notes.hpp"
#include "structure/structure.hpp"

namespace accel {

/// A model file cut into units under a configuration, as the worker does, from the file's structure alone.
struct ModelPlan {
  ModelStructure structure;
  std::vector<UnitPlan> units;
  config::FsdpConfig fsdp;  ///< The configuration, completed by with_notes().
};

/// The configuration with the layer classes in the model's notes, if the configuration names none.
config::FsdpConfig with_notes(config::FsdpConfig config, const ModelNotes& notes);

/// Plans the model. Throws Error (kUsage) as parse_notes() and plan_units() do.
ModelPlan plan_model(const ArchiveModel& model, const config::FsdpConfig& fsdp);

/// The footprint of the plan at the configuration's number of ranks. The configuration must have a training
/// section. Throws as the other footprint_of() does.
Footprint footprint_of(const ArchiveModel& model, const ModelPlan& plan, const config::Config& config);

}  // namespace accel
