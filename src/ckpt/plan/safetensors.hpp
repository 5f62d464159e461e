#pragma once

#include <cstdint>

#include "ckpt/plan/output_plan.hpp"
#include "ckpt/plan/weight_files.hpp"

namespace accel::ckpt {

/// Plans safetensors files with all tensors of `state` but the tied ones, each of which is recorded in the
/// metadata of its file as `name: kept name`. More than one file, and an index, only if `max_shard_bytes` (0:
/// no limit) is exceeded. Throws Error (kFailure) for what safetensors cannot hold.
[[nodiscard]] OutputPlan plan_safetensors_files(const OutputState& state, const WeightFiles& names,
                                                std::uint64_t max_shard_bytes);

}  // namespace accel::ckpt
