#pragma once

#include <map>
#include <string>

#include "core/config/config.hpp"

namespace accel::config {

/// The settings of a training that its numbers may depend on, with their values as text: all of the resolved
/// configuration but those with the trait kNoNumbers, which are known to change nothing, such as the place of
/// logs, or stand for something else, such as the path of the data. A setting that is new is among them.
std::map<std::string, std::string> number_settings(const Config& config);

/// Whether a setting of number_settings() follows from mixed_precision, unless it is set.
bool follows_mixed_precision(const std::string& key);

}  // namespace accel::config
