#pragma once

#include <string>

#include "base/error.hpp"
#include "core/config/loaded_config.hpp"

namespace accel {

/// Does `work` as config::blamed_on() does. What is wrong with a file that the configuration names is an
/// error of the configuration, and a message that names the key gets the file and line alone.
template <class Work>
auto blamed_on(const std::string& key, const config::LoadedConfig& loaded, const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    const bool is_named = error.message().find(key) != std::string::npos;
    const ErrorKind kind = error.kind() == ErrorKind::kFailure ? ErrorKind::kUsage : error.kind();
    const std::string context = is_named ? "" : "'" + key + "': ";
    throw Error(kind, loaded.settings.where(key) + context + error.message()).hint(error.advice());
  }
}

}  // namespace accel
