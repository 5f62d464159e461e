#pragma once

#include "base/progress.hpp"
#include "ckpt/convert/merge.hpp"
#include "ckpt/read/checkpoint.hpp"
#include "ckpt/write/commit.hpp"

namespace accel::ckpt {

/// Verifies a checkpoint as `accel verify` does: checksums, manifest, coverage. Throws Error (kMissing or
/// kCorrupt) that names the findings. If the source is not removed afterwards (`is_removed`), findings about
/// stale files, times and files that do not belong to the checkpoint are only warnings.
void check_source(Checkpoint& source, Progress::Mode progress, bool is_removed);

/// Reads the output of a merge, from the disk as far as the system allows, and compares every tensor with the
/// source, bit for bit and after any conversion. Throws Error: kMissing for a tensor that is missing,
/// kCorrupt for a tensor that differs.
void check_merged(Checkpoint& source, const MergePlan& plan, const OutputTarget& target, Progress& progress);

}  // namespace accel::ckpt
