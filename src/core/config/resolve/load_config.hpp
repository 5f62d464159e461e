#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/config/config.hpp"
#include "core/config/settings/settings.hpp"
#include "core/config/settings/value.hpp"

namespace accel::core {

/// All that a resolved configuration depends on.
struct ConfigRequest {
  std::filesystem::path file;   ///< YAML; empty: none, which only a program may have.
  std::vector<Settings> flags;  ///< In the order given; a later one wins.
  bool runs_program =
      false;  ///< `-- PROGRAM`: no training section is needed, and none of the engine's limits apply.
  /// Nothing will run: neither GPUs nor training data need be here, and an earlier run's output is no
  /// obstacle.
  bool only_plans = false;
  int visible_gpus = 0;
  Environment environment;
};

struct LoadedConfig {
  Config config;
  Settings settings;                  ///< What was set, and where; the values in `config` derive from it.
  std::vector<std::string> warnings;  ///< Values that are set and have no effect.
};

/// Reads, checks, merges and resolves: flags over the file over the environment over defaults. Everything
/// that can be known to be wrong before a process starts is an Error of kind kUsage here, with file, line and
/// column or the flag's name: syntax, unknown keys, types, ranges, contradictions, what is not built yet, and
/// files that are not there.
LoadedConfig load_config(const ConfigRequest& request);

}  // namespace accel::core
