#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "base/files/fd.hpp"

namespace accel {

/// Temporary names, and the removal of those that dead processes left behind.
///
///   .NAME.tmp-TOKEN          a file being written (AtomicFile)
///   NAME.incomplete-TOKEN    a directory being written beside its target
///   .incomplete-TOKEN        the same, inside the target
///   NAME.deleting-TOKEN      a directory on its way out
///
/// TOKEN is `<host>-<pid>-<number>`; host is a hash of the host's name. The owner holds a flock on the file
/// or directory as long as it lives. A leftover is removed if its host is this one and the lock is free. One
/// of another host, or on a file system without locks, is removed when nothing in it has changed for a day,
/// because not every file system shares locks between hosts.
enum class LeftoverKind { kFile, kBeside, kInside, kDeleting };

/// A flock on a file or directory, held until destruction.
class LeftoverLock {
 public:
  enum class State { kHeld, kTaken, kGone, kNotSupported };

  /// Tries once to take the lock, without waiting.
  explicit LeftoverLock(const std::filesystem::path& path);

  [[nodiscard]] State state() const { return state_; }
  /// Whether the file or directory is not there any more, or another process has its lock.
  [[nodiscard]] bool is_lost() const { return state_ == State::kTaken || state_ == State::kGone; }

 private:
  Fd fd_;
  State state_ = State::kGone;
};

/// A temporary name of `kind` for `target` that does not exist and that no other process or call gets.
std::filesystem::path leftover_name(const std::filesystem::path& target, LeftoverKind kind);

/// The name of kind kDeleting with the target and token of `beside`, which is of kind kBeside.
std::filesystem::path deleting_name(const std::filesystem::path& beside);

/// Whether `name` is of `kind` for a target called `target_name`.
bool is_leftover_name(std::string_view name, std::string_view target_name, LeftoverKind kind);

/// Whether `name` is of any kind for any target. Such a file or directory is not a checkpoint.
bool is_leftover_name(std::string_view name);

/// Removes what dead processes left of their work on `target`, beside it and in it, and undoes commits that
/// they did not finish. What cannot be removed is logged as a warning.
void sweep_leftovers(const std::filesystem::path& target);

/// Undoes a commit into an existing directory: removes from `target`, durably, the hard links of files at the
/// top of `staging`. With `if_incomplete` it does so only if at least one of these files has no link there.
void undo_links(const std::filesystem::path& staging, const std::filesystem::path& target,
                bool if_incomplete);

}  // namespace accel
