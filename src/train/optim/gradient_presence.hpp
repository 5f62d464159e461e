#pragma once

#include <cstdint>
#include <vector>

#include "train/c10d/group.hpp"
#include "train/fsdp/buffers/flat_buffer.hpp"

namespace accel::train {

/// For each buffer, and in it for each parameter of its layout, whether the parameter got a gradient in a
/// step. A parameter without one has zeros in the flat gradient, which is not the same: torch's optimizers
/// move a parameter whose gradient is zero, by weight decay and by momentum, and do not change a parameter
/// whose grad is None.
using GradientPresence = std::vector<std::vector<bool>>;

/// Returns the presence of gradients in this rank's last step.
GradientPresence gradient_presence(const std::vector<FlatBuffer*>& buffers);

/// Returns the number of parameters without a gradient.
std::int64_t count_missing(const GradientPresence& presence);

/// Returns which parameters have a gradient on any rank of `group`. `own` is for the same buffers on all
/// ranks. Collective.
GradientPresence on_any_rank(GradientPresence own, Group& group);

}  // namespace accel::train
