#pragma once

#include <string>

#include "core/config/config.hpp"
#include "structure/structure.hpp"
#include "train/c10d/group.hpp"

namespace accel::train {

/// Compares what the ranks are about to train: the configuration, the model's structure and the data. A rank
/// that differs from rank 0, for example because it sees another version of a file, is an Error of kind
/// kUsage that says what differs. Collective.
void require_agreement(Group& group, const config::Config& config, const ModelStructure& model,
                       const std::string& data);

}  // namespace accel::train
