#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/environment.hpp"
#include "core/config/value.hpp"

namespace accel::config {

/// All that a resolved configuration depends on.
struct ConfigRequest {
  std::filesystem::path file;       ///< The YAML file; empty for none, which only a program may have.
  std::optional<std::string> text;  ///< What is in `file`, if it is known already.
  std::vector<Settings> flags;      ///< The flags, in the order given; a later one wins.
  /// The user's own program runs: a training section is not needed, and the limits of the engine do not
  /// apply.
  bool runs_program = false;
  std::string_view command = "launch";  ///< The command of accel that asks, for hints.
  /// Nothing will run, so neither GPUs nor training data are needed.
  bool only_plans = false;
  bool needs_training_data = true;  ///< False for an evaluation.
  int visible_gpus = 0;
  /// Says the least compute capability of the GPUs of the ranks, such as 8.9; nothing if it is not known. It
  /// gets their indices among the visible ones, is called only where that matters, and may be empty.
  std::function<std::optional<double>(const std::vector<int>& gpu_ids)> compute_capability;
  Environment environment;
};

}  // namespace accel::config
