#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/config/config.hpp"

namespace accel::config {

/// The settings of a training that its numbers may depend on, with their values as text: all of the resolved
/// configuration but those with the trait kNoNumbers, which are known to change nothing, such as the place of
/// logs, or stand for something else, such as the path of the data. Some of them count in some trainings, as
/// those of the evaluation do where the learning rate follows it (Key::numbers_if). A setting that is new is
/// among them.
std::map<std::string, std::string> number_settings(const Config& config);

/// Whether a setting of number_settings() follows from mixed_precision, unless it is set.
bool follows_mixed_precision(const std::string& key);

/// Says what has changed from the settings in a checkpoint to those of now, a sentence each, of the settings
/// that both have. One that follows from mixed_precision is left out if that has changed.
std::vector<std::string> changed_settings(const std::map<std::string, std::string>& before,
                                          const std::map<std::string, std::string>& now);

}  // namespace accel::config
