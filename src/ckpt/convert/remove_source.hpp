#pragma once

#include "ckpt/read/checkpoint.hpp"

namespace accel::ckpt {

/// Throws Error (kUsage) unless remove_checkpoint can remove it: a sharded checkpoint's directory with
/// nothing else in it. Of no other kind does a merge keep all that a file holds, or know all files that
/// belong to it.
void check_removable(const Checkpoint& checkpoint);

/// Removes the checkpoint's directory. A crash leaves it whole, or nothing under its name.
void remove_checkpoint(const Checkpoint& checkpoint);

}  // namespace accel::ckpt
