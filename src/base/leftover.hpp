#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace accel {

/// Temporary names, and the removal of those that dead processes left behind.
///
///   .NAME.tmp-TOKEN          a file being written (AtomicFile)
///   NAME.incomplete-TOKEN    a directory being written beside its target
///   .incomplete-TOKEN        the same, inside the target
///   NAME.deleting-TOKEN      a directory on its way out
///
/// TOKEN is `<host>-<pid>-<number>`, host being a hash of the host's name. The owner holds a flock on it,
/// which ends with the owner's life. A leftover is removed if its host is this one and the lock is free. One
/// of another host stays until it is a day old, since locks do not reach across hosts on every file system.
enum class LeftoverKind { kFile, kBeside, kInside, kDeleting };

/// A flock on a file or directory that the process is about to write or remove.
class LeftoverLock {
 public:
  /// The lock if it is free now; an owner is alive otherwise. File systems without locks count as free.
  static LeftoverLock take(const std::filesystem::path& path);

  LeftoverLock(LeftoverLock&& other) noexcept;
  LeftoverLock& operator=(LeftoverLock&& other) noexcept;
  ~LeftoverLock();

  [[nodiscard]] bool held() const { return fd_ >= 0; }

 private:
  explicit LeftoverLock(int fd) : fd_(fd) {}

  int fd_ = -1;
};

/// A name for a temporary of `kind` for `target` that no other process or call gets.
std::filesystem::path leftover_name(const std::filesystem::path& target, LeftoverKind kind);

/// Removes what dead processes left of their work on `target`, beside it and in it, and undoes a commit that
/// they did not finish. What cannot be removed is warned of.
void sweep_leftovers(const std::filesystem::path& target);

}  // namespace accel
