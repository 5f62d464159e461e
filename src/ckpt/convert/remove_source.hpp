#pragma once

#include "ckpt/read/checkpoint.hpp"

namespace accel::ckpt {

/// Throws Error (kUsage) unless the checkpoint is the directory of a sharded checkpoint with nothing else in
/// it. Only that can be removed: for other kinds, a merge does not keep everything that a file holds, or does
/// not know all files that belong to the checkpoint.
void check_removable(const Checkpoint& checkpoint);

/// Removes the directory of the checkpoint. After a crash, either all of it or nothing is under its name.
void remove_checkpoint(const Checkpoint& checkpoint);

}  // namespace accel::ckpt
