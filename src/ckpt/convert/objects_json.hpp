#pragma once

#include <string>
#include <vector>

#include "ckpt/plan/output_plan.hpp"

namespace accel::ckpt {

/// Objects at their places in a nested state dict, as a JSON document with two spaces: strings become keys,
/// and integers positions in arrays. Tuples become arrays; infinity and NaN, which JSON lacks, the strings
/// Python's `repr` gives; integers beyond 64 bits, bytes, and what a class would have to make of itself, a
/// string that describes them. Throws Error (kFailure) if two paths contradict each other, or an array would
/// have a hole.
[[nodiscard]] std::string to_json(const std::vector<OutputObject>& objects);

}  // namespace accel::ckpt
