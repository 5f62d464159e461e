#pragma once

#include <string>
#include <vector>

#include "core/config/loaded_config.hpp"

namespace accel::config {

/// What costs a training time by a default that the user may not know. `accel check` shows it as warnings. A
/// launch does not: the configuration does what it says.
std::vector<std::string> advice_for(const LoadedConfig& loaded);

}  // namespace accel::config
