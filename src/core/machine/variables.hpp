#pragma once

#include <map>
#include <string>
#include <vector>

namespace accel::machine {

/// Those variables of an environment ("NAME=value") that change what accel, its ranks or the libraries under
/// them do. A value is shown if the variable is known by its whole name and the value has the shape that is
/// known for it; kNotShown (value_shape.hpp) stands for all others. An unknown variable is named if it
/// belongs to one of those libraries (ACCEL_*, FSDP_*, NCCL_*, SLURM_* and others).
[[nodiscard]] std::map<std::string, std::string> relevant_variables(
    const std::vector<std::string>& environment);

}  // namespace accel::machine
