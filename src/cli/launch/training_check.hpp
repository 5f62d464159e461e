#pragma once

#include <optional>
#include <string>

#include "core/config/loaded_config.hpp"
#include "preflight/training_data.hpp"

namespace accel::cli {

/// Throws what keeps the training of a configuration from its first step, as far as it can be seen before any
/// rank starts (preflight/preflight.hpp), and returns what it takes of its data. A finished run needs nothing
/// any more, but is to be of the same model. Without a training it does nothing.
std::optional<TrainingData> check_training(const config::LoadedConfig& loaded);

/// Says that a launch would have nothing to do, as a sentence for a warning; empty if it has.
[[nodiscard]] std::string finished_run(const config::LoadedConfig& loaded);

}  // namespace accel::cli
