#pragma once

#include "ckpt/plan/output_plan.hpp"

namespace accel::ckpt {

/// Plans a DCP checkpoint (docs/formats.md, "DCP"): `__{R}_0.distcp` for each of `ranks` ranks, and
/// `.metadata` as the last file. Tensors are split as FSDP2 splits them: rank R gets the rows (dimension 0)
/// from R * ceil(rows / ranks) on, so the last ranks may get fewer rows, or none. Rank 0 gets objects, and
/// tensors without dimensions or without elements. Every tied item is written, because DCP has no sharing.
///
/// Throws Error: kUsage unless `ranks` is positive; kFailure if an object contains a tensor, or if two
/// entries have the same name.
[[nodiscard]] OutputPlan plan_dcp(const OutputState& state, int ranks);

}  // namespace accel::ckpt
