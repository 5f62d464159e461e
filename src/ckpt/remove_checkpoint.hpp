#pragma once

#include "ckpt/checkpoint.hpp"

namespace accel::ckpt {

/// Throws Error (kUsage) unless remove_checkpoint can remove it: a sharded checkpoint's directory, or one
/// file.
void check_removable(const Checkpoint& checkpoint);

/// Removes the checkpoint's directory or file. A crash leaves it whole, or nothing under its name.
void remove_checkpoint(const Checkpoint& checkpoint);

}  // namespace accel::ckpt
