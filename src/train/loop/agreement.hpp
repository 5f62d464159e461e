#pragma once

#include <cstdint>

#include "core/config/config.hpp"
#include "structure/structure.hpp"
#include "train/c10d/group.hpp"

namespace accel::train {

/// Compares what each rank is about to train: its configuration, the model's structure and the size of its
/// data. A rank that differs from rank 0, say because it sees another version of a file, is an Error of kind
/// kUsage that says in what. Collective.
void require_agreement(Group& group, const core::Config& config, const ModelStructure& model,
                       std::int64_t data_tokens);

}  // namespace accel::train
