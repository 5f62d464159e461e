#pragma once

#include "core/config/loaded_config.hpp"
#include "core/config/resolve/request.hpp"

namespace accel::core {

/// Reads, checks, merges and resolves: flags over the file over the environment over defaults. Everything
/// that can be known to be wrong before a process starts is an Error of kind kUsage here, with file, line and
/// column or the flag's name: syntax, unknown keys, types, ranges, contradictions, what is not built yet, and
/// files that are not there.
LoadedConfig load_config(const ConfigRequest& request);

}  // namespace accel::core
