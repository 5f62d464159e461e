#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ckpt/plan/output_plan.hpp"
#include "ckpt/plan/weight_files.hpp"
#include "ckpt/safetensors/header.hpp"

namespace accel::ckpt {

/// Plans safetensors files with all tensors of `state` except the tied ones. A tied tensor is recorded in the
/// metadata of its file as `name: name of the tensor that it is tied to`, beside `metadata`. There are
/// several files and an index only if the tensors take more than `max_shard_bytes` (0: no limit). Throws
/// Error (kFailure) for what safetensors cannot hold.
[[nodiscard]] OutputPlan plan_safetensors_files(const OutputState& state, const WeightFiles& names,
                                                std::uint64_t max_shard_bytes,
                                                const StringMap& metadata = {});

/// The same with the files of another model: `files` has the file of each tensor, by index into
/// `state.tensors`. There is an index if the files are several.
[[nodiscard]] OutputPlan plan_same_safetensors_files(const OutputState& state, const WeightFiles& names,
                                                     const std::vector<std::string>& files,
                                                     const StringMap& metadata);

}  // namespace accel::ckpt
