#pragma once

#include <string>
#include <vector>

#include "cli/results.hpp"
#include "core/config/config.hpp"
#include "train/fsdp/footprint.hpp"
#include "train/fsdp/model_plan.hpp"

namespace accel::cli {

/// What `accel plan` found.
struct PlanReport {
  std::string config_file;
  const core::Config& config;     ///< Of the first world size.
  const train::ModelPlan& model;  ///< Of the first world size, too.
  const std::vector<train::Footprint>& footprints;
};

void print_plan_text(const PlanReport& report, Results& out);
void print_plan_json(const PlanReport& report, Results& out);

}  // namespace accel::cli
