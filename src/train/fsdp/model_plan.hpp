#pragma once

#include <vector>

#include "core/config/config.hpp"
#include "train/fsdp/footprint.hpp"
#include "train/fsdp/unit_plan.hpp"
#include "train/model/archive_model.hpp"
#include "train/model/structure.hpp"

namespace accel::train {

/// A model file under a configuration, cut into units as the worker does it, from the file's structure alone.
struct ModelPlan {
  ModelStructure structure;
  std::vector<UnitPlan> units;
  core::FsdpConfig fsdp;  ///< With the model's own layer classes, if the configuration names none.
};

/// Throws Error (kUsage) as parse_notes() and plan_units() do.
ModelPlan plan_model(const ArchiveModel& model, const core::FsdpConfig& fsdp);

/// What the plan costs at the configuration's number of ranks. The configuration has a training section.
/// Throws as footprint_of() does.
Footprint footprint_of(const ArchiveModel& model, const ModelPlan& plan, const core::Config& config);

}  // namespace accel::train
