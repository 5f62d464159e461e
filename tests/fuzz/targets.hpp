#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace accel::fuzz {

/// Something that reads bytes nobody vouches for. It may reject them with an Error; anything else that goes
/// wrong (a crash, another exception, a sanitizer's report, memory or time without bound) is a defect.
struct Target {
  std::string_view name;  ///< Also the folder in corpus/.
  void (*read)(std::span<const std::byte> input);
};

/// All of them, sorted by name.
[[nodiscard]] std::span<const Target> targets();

/// Lets the target of that name, which must exist, read `input`.
void run_target(std::string_view name, std::span<const std::byte> input);

}  // namespace accel::fuzz
