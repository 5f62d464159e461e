#pragma once

#include <vector>

#include "train/c10d/mesh_groups.hpp"
#include "train/fsdp/buffers/flat_buffer.hpp"

namespace accel::train {

/// Throws Error (kUsage), which names the parameter, if the gradient of one that tensor parallelism does not
/// cut differs between the ranks along tp by more than rounding: it is then the gradient of a part of the
/// heads or columns, and nobody has summed the parts. The gradients of `buffers` must be finite, and not yet
/// clipped. Reads one number for each parameter, for which the host waits. Collective among the ranks along
/// tp; with one of them it does nothing.
void require_equal_along_tp(const std::vector<FlatBuffer*>& buffers, const MeshGroups& groups);

}  // namespace accel::train
