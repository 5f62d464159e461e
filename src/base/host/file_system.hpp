#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace accel {

/// How far a lock on a file reaches, as far as the file system and its mount options tell.
enum class LockReach {
  kOneHost,   ///< A local file system: no other host has it.
  kAllHosts,  ///< A network file system that shares locks.
  kUnknown,   ///< One that shares no locks, or of which that cannot be known: FUSE, Lustre with localflock.
};

struct FileSystem {
  std::string
      type;  ///< Its type in /proc/self/mountinfo, such as "nfs4" or "fuse.sshfs", or its magic number.
  LockReach reach = LockReach::kUnknown;
};

/// The file system that holds `path`. One that cannot be asked is of type "unknown".
[[nodiscard]] FileSystem file_system_of(const std::filesystem::path& path);

/// Says which hosts share the locks of a file system. `magic` is its number in statfs(2), and `options` are
/// those of its superblock, such as "rw,vers=4.2,local_lock=none".
[[nodiscard]] LockReach lock_reach(unsigned long magic, const std::string& options);

/// The bytes that this user may still write to the file system of `path`. Nothing if it cannot be asked, or
/// states no size: ramfs, tmpfs without a limit, and some of FUSE.
[[nodiscard]] std::optional<std::uint64_t> free_bytes(const std::filesystem::path& path);

/// Whether the descriptor is of a file on NFS.
[[nodiscard]] bool is_on_nfs(int fd);

}  // namespace accel
