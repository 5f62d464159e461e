#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace accel {

/// The bytes of memory that processes can still take: what the system has available, or what the control
/// groups of this process have left (version 1 or 2), whichever is less. 0 if the system does not say.
[[nodiscard]] std::uint64_t available_memory_bytes(const std::filesystem::path& root = "/");

/// The bytes of memory that the machine has; 0 if the system does not say.
[[nodiscard]] std::uint64_t total_memory_bytes(const std::filesystem::path& root = "/");

/// The peak resident memory of this process. getrusage's ru_maxrss survives exec and would count the pages of
/// the launcher.
[[nodiscard]] std::uint64_t max_rss_bytes();

/// The least limit of the control groups of this process (`memory.max` of version 2, `memory.limit_in_bytes`
/// of version 1); absent without a limit.
[[nodiscard]] std::optional<std::uint64_t> memory_limit_bytes(const std::filesystem::path& root = "/");

/// How many processes the kernel has killed for want of memory. Nothing where it does not say.
struct OomKills {
  std::optional<std::uint64_t> group;    ///< The count of this process's control group (version 1 or 2).
  std::optional<std::uint64_t> machine;  ///< The count of the whole machine.
};
/// The difference from an earlier count.
[[nodiscard]] OomKills oom_kills_since(const OomKills& before);
[[nodiscard]] OomKills oom_kills(const std::filesystem::path& root = "/");

}  // namespace accel
