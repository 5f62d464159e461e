#pragma once

#include <filesystem>
#include <optional>
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
/// of another host, or on a file system without locks, stays until nothing in it has changed for a day: locks
/// do not reach across hosts everywhere.
enum class LeftoverKind { kFile, kBeside, kInside, kDeleting };

/// A flock on a file or directory, held until destruction.
class LeftoverLock {
 public:
  enum class State { kHeld, kTaken, kGone, kNotSupported };

  /// Tries once, without waiting.
  explicit LeftoverLock(const std::filesystem::path& path);
  LeftoverLock(LeftoverLock&& other) noexcept;
  LeftoverLock& operator=(LeftoverLock&& other) noexcept;
  ~LeftoverLock();

  [[nodiscard]] State state() const { return state_; }

 private:
  int fd_ = -1;
  State state_ = State::kGone;
};

/// A temporary name of `kind` for `target` that is free and that no other process or call gets.
std::filesystem::path leftover_name(const std::filesystem::path& target, LeftoverKind kind);

/// The name that `beside`, which is of kind kBeside, has as kDeleting.
std::filesystem::path deleting_name(const std::filesystem::path& beside);

/// Whether `name` is of `kind` for a target called `target_name`.
bool is_leftover_name(std::string_view name, std::string_view target_name, LeftoverKind kind);

/// The same for any target and kind: such a file or directory is nobody's checkpoint.
bool is_leftover_name(std::string_view name);

/// Removes what dead processes left of their work on `target`, beside it and in it, and undoes commits that
/// they did not finish. What cannot be removed is warned of.
void sweep_leftovers(const std::filesystem::path& target);

/// Removes from `target` the hard links of files at the top of `staging`, durably; with `if_incomplete` only
/// if some of those files have none there. That is how a commit into an existing directory is undone.
void undo_links(const std::filesystem::path& staging, const std::filesystem::path& target,
                bool if_incomplete);

}  // namespace accel
