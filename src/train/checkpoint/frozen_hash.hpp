#pragma once

#include <string>

#include "train/c10d/group.hpp"
#include "train/fsdp/sharded_model.hpp"

namespace accel::train {

/// A hash of the frozen parameters, from up to 64 elements of each. It is the same on all ranks, and does not
/// depend on how many there are. Collective over `group`, the group of all ranks.
[[nodiscard]] std::string frozen_hash(const ShardedModel& model, Group& group);

}  // namespace accel::train
