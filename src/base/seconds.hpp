#pragma once

#include <chrono>

namespace accel {

[[nodiscard]] inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// The seconds since 1970 as the clock of this machine shows them. They jump when somebody sets the clock.
[[nodiscard]] inline double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace accel
