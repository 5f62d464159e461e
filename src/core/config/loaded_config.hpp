#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "core/config/config.hpp"
#include "core/config/value.hpp"

namespace accel::config {

/// A configuration with what it was resolved from.
struct LoadedConfig {
  Config config;
  Settings settings;                  ///< What was set, and where. `config` is resolved from it.
  std::vector<std::string> warnings;  ///< Values that are set and have no effect.
};

/// Calls `work` and returns its result. An Error gets as context the key that caused it and where it is set.
template <class Work>
auto blamed_on(std::string_view key, const Settings& settings, const Work& work) {
  try {
    return work();
  } catch (Error& error) {
    error.add_context(fmt::format("{}'{}'", settings.where(key), key));
    throw;
  }
}

}  // namespace accel::config
