#pragma once

#include <string>
#include <vector>

#include "base/environment.hpp"
#include "core/launch/place.hpp"

namespace accel::launch {

/// Runs `command` on the ranks of this machine until the attempt has ended on all machines. If they cannot be
/// started, it tells the other machines why, and throws.
[[nodiscard]] AttemptEnd run_attempt(const LaunchRequest& request, const Place& place,
                                     const std::vector<std::string>& command, const Environment& environment);

}  // namespace accel::launch
