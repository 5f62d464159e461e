#pragma once

#include <string>
#include <vector>

#include "ckpt/plan/output_plan.hpp"

namespace accel::ckpt {

/// Returns objects, at their places in a nested state dict, as a JSON document that is indented by two
/// spaces. Strings in paths become keys, and integers become positions in arrays. Tuples become arrays.
/// Infinity and NaN, which JSON lacks, become the strings that Python's `repr` gives. Integers beyond 64
/// bits, bytes and objects of classes become a string that describes them. Throws Error (kFailure) if two
/// paths contradict each other, or if an array would have a hole.
[[nodiscard]] std::string to_json(const std::vector<OutputObject>& objects);

}  // namespace accel::ckpt
