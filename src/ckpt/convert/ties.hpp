#pragma once

#include "ckpt/plan/output_plan.hpp"
#include "ckpt/read/checkpoint.hpp"

namespace accel::ckpt {

/// Sets `tied_to` of the items whose bytes are, in the source, the very same bytes in the very same file as
/// those of an item before them: torch.save writes a shared storage once. Formats without sharing have none.
void mark_shared(Checkpoint& source, OutputState& state);

/// As mark_shared, and for formats that write tied parameters under each of their names and keep no record
/// that they are one: taken as tied are tensors of the same bytes, dtype and shape, of two or more
/// dimensions, not constant, whose names differ in more than numbers. The last three conditions keep apart
/// what is equal without being one: fresh biases and norms, and copies of a layer. Reads the data of likely
/// pairs.
void mark_ties(Checkpoint& source, OutputState& state);

}  // namespace accel::ckpt
