#pragma once

#include "base/progress.hpp"
#include "ckpt/convert/merge.hpp"
#include "ckpt/read/checkpoint.hpp"
#include "ckpt/write/commit.hpp"

namespace accel::ckpt {

/// Verifies a checkpoint as `accel verify` does: checksums, manifest, coverage. Throws Error (kMissing or
/// kCorrupt) that names what was found. Unless the source `is_removed` afterwards, it is a warning what files
/// beside those of the checkpoint, times and leftovers say.
void check_source(Checkpoint& source, Progress::Mode progress, bool is_removed);

/// Reads what a merge has written, from the disk as far as the system allows, and compares every tensor with
/// the source, bit for bit (after the conversion, where one was asked for). Throws Error: kMissing for a
/// tensor that is not there, kCorrupt for one that differs.
void check_merged(Checkpoint& source, const MergePlan& plan, const OutputTarget& target, Progress& progress);

}  // namespace accel::ckpt
