#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/environment.hpp"

namespace accel::machine {

/// What started this process, as its environment says.
struct BatchSystem {
  std::vector<std::string> found;  ///< For example "Slurm, job 17, step 0"; empty if there is none.
  /// What `accel launch` takes from it without other settings (config::settings_from_scheduler()).
  std::optional<std::int64_t> num_machines;
  std::optional<std::int64_t> machine_rank;
  std::string why_not;  ///< Why `accel launch` would refuse to start here; empty if it would not.
};

[[nodiscard]] BatchSystem find_batch_system(const Environment& environment);

}  // namespace accel::machine
