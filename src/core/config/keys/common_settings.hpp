#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/config/config.hpp"

namespace accel::config {

/// The settings that all machines of a run must share, as texts by key, such as "training.optimizer.lr".
std::map<std::string, std::string> common_settings(const Config& config);

/// The first differences between `own` settings and those of another, such as "a.b is 1, on machine 0 2",
/// where `other` is "on machine 0". Empty if there is none.
std::string differences(const std::map<std::string, std::string>& own,
                        const std::map<std::string, std::string>& others, const std::string& other);

/// The names of all settings that differ.
std::vector<std::string> different_names(const std::map<std::string, std::string>& own,
                                         const std::map<std::string, std::string>& others);

}  // namespace accel::config
