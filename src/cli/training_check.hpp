#pragma once

#include <optional>

#include "core/config/loaded_config.hpp"
#include "preflight/training_data.hpp"

namespace accel::cli {

/// Throws what keeps the training of a configuration from its first step, as far as it can be seen before any
/// rank starts (preflight/preflight.hpp), and returns what it takes of its data. A run that is finished needs
/// nothing any more. Without a training it does nothing.
std::optional<TrainingData> check_training(const config::LoadedConfig& loaded);

}  // namespace accel::cli
