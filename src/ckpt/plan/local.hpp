#pragma once

#include <string>

#include "ckpt/plan/output_plan.hpp"

namespace accel::ckpt {

/// Plans a local checkpoint (docs/formats.md, "Local checkpoints"): for each of `ranks` ranks
/// `{base}_rank{R}.bin` with its elements of every tensor, and `{base}_rank{R}.json` that says which they
/// are. Of a tensor of n elements, rank R has those from R * ceil(n / ranks), so the last ranks may have
/// fewer, or none. Tied items share their storage in each rank's file.
///
/// Throws Error: kUsage unless `ranks` is positive; kFailure if there are objects, which this format has no
/// place for.
[[nodiscard]] OutputPlan plan_local(const OutputState& state, int ranks, const std::string& base);

}  // namespace accel::ckpt
