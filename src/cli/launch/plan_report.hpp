#pragma once

#include <string>
#include <vector>

#include "cli/output/results.hpp"
#include "core/config/config.hpp"
#include "plan/memory/footprint.hpp"
#include "plan/model_plan.hpp"

namespace accel::cli {

/// What `accel plan` reports.
struct PlanReport {
  std::string config_file;
  const config::Config& config;              ///< The configuration for the first world size.
  const ModelPlan& model;                    ///< The plan for the first world size.
  const std::vector<Footprint>& footprints;  ///< One footprint for each world size.
};

void print_plan_text(const PlanReport& report, Results& out);
void print_plan_json(const PlanReport& report, Results& out);

}  // namespace accel::cli
