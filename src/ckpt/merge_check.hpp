#pragma once

#include "base/progress.hpp"
#include "ckpt/checkpoint.hpp"
#include "ckpt/merge_plan.hpp"
#include "ckpt/output_commit.hpp"

namespace accel::ckpt {

/// Verifies a checkpoint as `accel verify` does: checksums, manifest, coverage. Throws Error (kMissing or
/// kCorrupt) that names what was found.
void check_source(const Checkpoint& source, Progress::Mode progress);

/// Reads what a merge has written, from the disk as far as the system allows, and compares every tensor with
/// the source, bit for bit (after the conversion, where one was asked for). Throws Error: kMissing for a
/// tensor that is not there, kCorrupt for one that differs.
void check_merged(Checkpoint& source, const MergePlan& plan, const OutputTarget& target, Progress& progress);

}  // namespace accel::ckpt
