#pragma once

#include "core/config/loaded_config.hpp"
#include "core/config/resolve/request.hpp"

namespace accel::config {

/// The text of a configuration file. Errors are of kind kUsage.
std::string read_config_file(const std::filesystem::path& file);

/// Reads, checks, merges and resolves the configuration. Flags win over the file, the file over the
/// environment, the environment over defaults. Broken syntax, unknown keys, wrong types, values out of range,
/// contradictions, values that are not supported and missing files are Errors of kind kUsage, with file, line
/// and column or the name of the flag.
LoadedConfig load_config(const ConfigRequest& request);

}  // namespace accel::config
