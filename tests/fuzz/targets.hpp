#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace accel::fuzz {

/// A function that reads untrusted bytes. It may reject them with an Error. Anything else that goes wrong (a
/// crash, another exception, a sanitizer's report, memory or time without bound) is a defect.
struct Target {
  std::string_view name;  ///< Also the folder in corpus/.
  void (*read)(std::span<const std::byte> input);
};

/// All targets, sorted by name.
[[nodiscard]] std::span<const Target> targets();

/// Runs the target `name`, which must exist, on `input`.
void run_target(std::string_view name, std::span<const std::byte> input);

}  // namespace accel::fuzz
