#pragma once

#include <cstdint>
#include <filesystem>

namespace accel {

/// The bytes of memory that processes can still take: what the system has available, or what the control
/// groups of this process have left (`memory.max` of version 2), whichever is less. 0 if the system does not
/// say.
[[nodiscard]] std::uint64_t available_memory_bytes(const std::filesystem::path& root = "/");

}  // namespace accel
