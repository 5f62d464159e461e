#pragma once

#include <cstddef>
#include <vector>

#include "ckpt/plan/output_plan.hpp"
#include "ckpt/read/checkpoint.hpp"

namespace accel::ckpt {

/// Whether tensors that are equal without being known to be tied count as tied.
enum class EqualTensors { kKept, kDropped };

/// Sets `tied_to` of each item whose bytes in the source are the same bytes of the same file as those of an
/// earlier item. torch.save writes a shared storage once. Formats without sharing have no such items.
void mark_shared(Checkpoint& source, OutputState& state);

/// Ties the items of each group, which are indices into source.tensors(), if they have the same bytes.
/// Another program may have changed the checkpoint since somebody recorded the ties.
void mark_recorded(Checkpoint& source, OutputState& state,
                   const std::vector<std::vector<std::size_t>>& groups);

/// Does what mark_shared does, and also marks the ties that Checkpoint::recorded_ties() names, if the tensors
/// have the same bytes. With kDropped it guesses further ties in formats that may hold a tied parameter under
/// each of its names without a record of the tie (may_hide_ties()). Two tensors count as tied then if they
/// have the same bytes, dtype and shape, have two or more dimensions, are not constant, and their names
/// differ in more than numbers. The last three conditions exclude tensors that are equal without being tied:
/// fresh biases and norms, and copies of a layer. Reads the data of likely pairs.
void mark_ties(Checkpoint& source, OutputState& state, EqualTensors equal);

/// Whether tensors of this kind of checkpoint may be tied although they do not share their bytes.
[[nodiscard]] bool may_hide_ties(Kind kind);

}  // namespace accel::ckpt
