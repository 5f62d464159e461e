#pragma once

#include <filesystem>
#include <vector>

#include "base/environment.hpp"
#include "core/config/value.hpp"

namespace accel::core {

/// All that a resolved configuration depends on.
struct ConfigRequest {
  std::filesystem::path file;   ///< YAML; empty: none, which only a program may have.
  std::vector<Settings> flags;  ///< In the order given; a later one wins.
  /// A program of the user runs: no training section is needed, and none of the engine's limits apply.
  bool runs_program = false;
  /// Nothing will run: neither GPUs nor training data need be here.
  bool only_plans = false;
  int visible_gpus = 0;
  Environment environment;
};

}  // namespace accel::core
