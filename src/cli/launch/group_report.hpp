#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "cli/output/results.hpp"
#include "plan/parameter_groups.hpp"

namespace accel::cli {

/// Prints a table of what a run does with the parameters of a model.
void print_groups(const std::vector<ParameterGroupInfo>& groups, Results& out);
[[nodiscard]] nlohmann::ordered_json json_of(const std::vector<ParameterGroupInfo>& groups);

}  // namespace accel::cli
