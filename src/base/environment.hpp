#pragma once

#include <functional>
#include <optional>
#include <string>

namespace accel {

/// Looks up one environment variable; empty if it is not set.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;

}  // namespace accel
