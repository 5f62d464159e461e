#pragma once

#include <string>
#include <vector>

#include "ckpt/plan/output_plan.hpp"
#include "ckpt/read/checkpoint.hpp"

namespace accel::ckpt {

/// The name that each tensor of the source has in the output, by its index in the source. The name is empty
/// for a tensor that is not in the output.
[[nodiscard]] std::vector<std::string> names_in_output(const OutputState& state, const Checkpoint& source);

/// The plan for people, as lines: the files, what goes where in them, and where each piece of a tensor comes
/// from. `names` comes from names_in_output(); if it is empty, only the source's names are shown. Throws what
/// Checkpoint::locate throws.
[[nodiscard]] std::vector<std::string> describe(const OutputPlan& plan, Checkpoint& source,
                                                const std::vector<std::string>& names = {});

}  // namespace accel::ckpt
