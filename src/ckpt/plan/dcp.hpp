#pragma once

#include "ckpt/plan/output_plan.hpp"

namespace accel::ckpt {

/// Plans a DCP checkpoint (docs/formats.md, "DCP"): `__{R}_0.distcp` for each of `ranks` ranks, and
/// `.metadata` as the last file. Tensors are split as FSDP2 splits them: rank R has the rows (dimension 0)
/// from R * ceil(rows / ranks), so the last ranks may have fewer, or none. Tensors without dimensions or
/// without elements, and objects, are rank 0's. Every tied item is written, as DCP has no sharing.
///
/// Throws Error: kUsage unless `ranks` is positive; kFailure if an object has a tensor in it, or two entries
/// have one name.
[[nodiscard]] OutputPlan plan_dcp(const OutputState& state, int ranks);

}  // namespace accel::ckpt
