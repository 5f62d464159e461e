#pragma once

#include <string>
#include <vector>

#include "core/config/loaded_config.hpp"

namespace accel::config {

/// The settings that are accepted and have no effect on this run, each with its place and the reason. What
/// load_config() warns of is not among them. A launch does not warn of them, because many are in every file
/// that Accelerate writes.
std::vector<std::string> settings_without_effect(const LoadedConfig& loaded);

}  // namespace accel::config
