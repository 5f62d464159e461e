#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace accel::ckpt {

/// The owner of a RunLock, as the lock file names it.
struct LockOwner {
  std::string token;  ///< Random; no other owner has it.
  std::string what;   ///< RunLock::kRun, or the command that changes the directory for a moment.
  std::string run_id;
  std::string host;
  std::string boot;          ///< The boot_id() of the host.
  std::uint64_t device = 0;  ///< The mount through which it sees the directory, as st_dev has it.
  bool locked = false;       ///< It has the lock, and not the record alone.
  std::int64_t pid = 0;
  std::int64_t since = 0;    ///< When it took the lock: seconds since 1970 by the clock of its host.
  double stale_after_s = 0;  ///< An owner that has not counted `beats` on for so long is gone.
  std::uint64_t beats = 0;

  friend bool operator==(const LockOwner&, const LockOwner&) = default;
};

/// Returns a text such as "node07, pid 4211, since 2026-11-25 10:00:00".
[[nodiscard]] std::string to_string(const LockOwner& owner);

/// The text of the file, padded so that one of the same owner can be written over another.
[[nodiscard]] std::string lock_text(const LockOwner& owner);

/// The owner in the text of a lock file. Returns nothing for another text, such as one that is being written.
[[nodiscard]] std::optional<LockOwner> parse_lock(const std::string& text);

/// The owner in a lock file, opened anew, since only that makes NFS ask its server. Nothing if there is none.
[[nodiscard]] std::optional<LockOwner> read_lock(const std::filesystem::path& file);

}  // namespace accel::ckpt
