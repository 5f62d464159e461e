#pragma once

#include <cstdint>
#include <vector>

#include "train/c10d/group.hpp"
#include "train/fsdp/flat_buffer.hpp"

namespace accel::train {

/// For each buffer, and in it for each parameter of its layout, whether it got a gradient in a step. Without
/// one, its part of the flat gradient is zero, which is not the same: an optimizer moves a parameter whose
/// gradient is zero, by weight decay and by momentum, and torch's leave one as it is whose grad is None.
using GradientPresence = std::vector<std::vector<bool>>;

/// In this rank's last step.
GradientPresence gradient_presence(const std::vector<FlatBuffer*>& buffers);

/// How many parameters got none.
std::int64_t count_missing(const GradientPresence& presence);

/// Whether they got one on any rank of `group`. Collective; `own` is of the same buffers on all of them.
GradientPresence on_any_rank(GradientPresence own, Group& group);

}  // namespace accel::train
