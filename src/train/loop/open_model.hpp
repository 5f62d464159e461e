#pragma once

#include "core/config/config.hpp"
#include "train/c10d/group.hpp"
#include "train/model/model_file.hpp"

namespace accel::train {

/// Opens the model file of a run. Each rank opens it, or with `broadcast_from_rank0` rank 0 alone, which
/// sends the other ranks everything but the parameters' values. Collective.
///
/// A rank other than 0 that does not see the file or the weights, and would have to read them, is an Error of
/// kind kUsage whose hint names that setting.
ModelFile open_model(const config::ModelConfig& config, Group& group);

}  // namespace accel::train
