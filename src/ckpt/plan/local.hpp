#pragma once

#include <string>

#include "ckpt/plan/output_plan.hpp"

namespace accel::ckpt {

/// Plans a local checkpoint (docs/formats.md, "Local checkpoints"). Each of `ranks` ranks gets
/// `{base}_rank{R}.bin` with its elements of every tensor, and `{base}_rank{R}.json`, which says which
/// elements these are. Of a tensor with n elements, rank R gets those from R * ceil(n / ranks) on, so the
/// last ranks may get fewer, or none. Tied items share their storage in the file of each rank.
///
/// Throws Error: kUsage unless `ranks` is positive; kFailure if there are objects, because the format has no
/// place for them.
[[nodiscard]] OutputPlan plan_local(const OutputState& state, int ranks, const std::string& base);

}  // namespace accel::ckpt
