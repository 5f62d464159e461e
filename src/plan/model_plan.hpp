#pragma once

#include <vector>

#include "core/config/config.hpp"
#include "plan/footprint.hpp"
#include "plan/unit_plan.hpp"
#include "structure/archive_model.hpp"
#include "structure/model_notes.hpp"
#include "structure/structure.hpp"

namespace accel {

/// A model file under a configuration, cut into units as the worker does it, from the file's structure alone.
struct ModelPlan {
  ModelStructure structure;
  std::vector<UnitPlan> units;
  core::FsdpConfig fsdp;  ///< With the model's own layer classes, if the configuration names none.
};

/// The configuration with the model's own layer classes, if it names none.
core::FsdpConfig with_notes(core::FsdpConfig config, const ModelNotes& notes);

/// Throws Error (kUsage) as parse_notes() and plan_units() do.
ModelPlan plan_model(const ArchiveModel& model, const core::FsdpConfig& fsdp);

/// What the plan costs at the configuration's number of ranks. The configuration has a training section.
/// Throws as footprint_of() does.
Footprint footprint_of(const ArchiveModel& model, const ModelPlan& plan, const core::Config& config);

}  // namespace accel
