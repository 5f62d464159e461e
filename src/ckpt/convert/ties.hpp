#pragma once

#include "ckpt/plan/output_plan.hpp"
#include "ckpt/read/checkpoint.hpp"

namespace accel::ckpt {

/// Sets `tied_to` of each item whose bytes in the source are the same bytes of the same file as those of an
/// earlier item. torch.save writes a shared storage once. Formats without sharing have no such items.
void mark_shared(Checkpoint& source, OutputState& state);

/// Does what mark_shared does, and also finds ties in formats that write tied parameters under each of their
/// names without a record of the tie. Two tensors count as tied if they have the same bytes, dtype and shape,
/// have two or more dimensions, are not constant, and their names differ in more than numbers. The last three
/// conditions exclude tensors that are equal without being tied: fresh biases and norms, and copies of a
/// layer. Reads the data of likely pairs.
void mark_ties(Checkpoint& source, OutputState& state);

}  // namespace accel::ckpt
