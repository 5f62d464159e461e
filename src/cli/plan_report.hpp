#pragma once

#include <string>
#include <vector>

#include "cli/results.hpp"
#include "core/config/config.hpp"
#include "plan/footprint.hpp"
#include "plan/model_plan.hpp"

namespace accel::cli {

/// What `accel plan` found.
struct PlanReport {
  std::string config_file;
  const core::Config& config;  ///< Of the first world size.
  const ModelPlan& model;      ///< Of the first world size, too.
  const std::vector<Footprint>& footprints;
};

void print_plan_text(const PlanReport& report, Results& out);
void print_plan_json(const PlanReport& report, Results& out);

}  // namespace accel::cli
