#pragma once

#include "core/config/loaded_config.hpp"

namespace accel::cli {

/// Throws what keeps the training of a configuration from its first step, as far as it can be seen before any
/// rank starts (preflight/preflight.hpp). A run that is finished needs nothing any more. Without a training
/// it does nothing.
void check_training(const config::LoadedConfig& loaded);

}  // namespace accel::cli
