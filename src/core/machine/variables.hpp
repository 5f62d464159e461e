#pragma once

#include <map>
#include <string>
#include <vector>

namespace accel::machine {

/// Those variables of an environment ("NAME=value") that change what accel, its ranks or the libraries under
/// them do. A value is shown if the variable is one of a list of names, none of which has a place for a
/// secret;
/// "(set, not shown)" stands for the value of any other that belongs to one of those libraries (ACCEL_*,
/// FSDP_*, NCCL_*, SLURM_* and others).
[[nodiscard]] std::map<std::string, std::string> relevant_variables(
    const std::vector<std::string>& environment);

}  // namespace accel::machine
