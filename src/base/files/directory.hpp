#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/files/file.hpp"

namespace accel {

/// Operations on directory entries. Each system call is a fault point (base/files/fault.hpp), and every
/// failure is an Error that names the path. None follows a symbolic link at the end of a path.

/// Whether there is an entry of this name, even a symbolic link to nothing.
[[nodiscard]] bool is_there(const std::filesystem::path& path);
/// Calls rename(2), which replaces what is at `to`. It is not durable before sync_directory().
void rename_entry(const std::filesystem::path& from, const std::filesystem::path& to);
/// Renames, or returns false if `to` exists. Where the file system cannot do that in one step, the check and
/// the rename are two.
[[nodiscard]] bool rename_to_free(const std::filesystem::path& from, const std::filesystem::path& to);
/// Swaps two entries atomically; false if the file system cannot.
[[nodiscard]] bool exchange_entries(const std::filesystem::path& a, const std::filesystem::path& b);

enum class LinkResult { kLinked, kTaken, kNotSupported };
/// Makes `to` a hard link of `from`.
[[nodiscard]] LinkResult link_entry(const std::filesystem::path& from, const std::filesystem::path& to);

void make_directory(const std::filesystem::path& path);
void remove_file(const std::filesystem::path& path);
void remove_directory(const std::filesystem::path& path);
void set_mode(const std::filesystem::path& path, unsigned mode);
/// Removes `path` with all below it. A path that does not exist is not an Error.
void remove_tree(const std::filesystem::path& path);
/// Removes `path` with all below it. A failure is logged as a warning, so that a destructor may call it.
void remove_quietly(const std::filesystem::path& path) noexcept;
/// Removes a tree that others may be reading. The tree is first renamed to `NAME.deleting-...`, durably, so
/// that a crash never leaves a part of it under its own name.
void discard_tree(const std::filesystem::path& path);

/// Directories that make_directories() made. The destructor removes those that are empty, unless keep() was
/// called.
class NewDirectories {
 public:
  NewDirectories() = default;
  explicit NewDirectories(const std::filesystem::path& directory) : made_(make_directories(directory)) {}
  NewDirectories(NewDirectories&& other) noexcept : made_(std::exchange(other.made_, {})) {}
  NewDirectories& operator=(NewDirectories&& other) noexcept {
    made_.swap(other.made_);
    return *this;
  }
  ~NewDirectories();

  void keep() { made_.clear(); }

 private:
  std::vector<std::filesystem::path> made_;  ///< The directories, the outermost first.
};

/// Syncs a directory. After a failure `undo` gives the entries their old names.
template <class Undo>
void sync_or_undo(const std::filesystem::path& directory, const Undo& undo) {
  try {
    sync_directory(directory);
  } catch (const Error&) {
    undo();
    throw;
  }
}

/// Calls fsync on every file and directory at and below `directory`.
void sync_tree(const std::filesystem::path& directory);

/// Makes everything below directory `from` also appear below directory `to`, except what exists there and the
/// top-level names in `except` (sorted). Files become hard links, or copies where links are not possible;
/// directories are new and have the modes of the old. What it makes is synced. A file system mounted below
/// `from` is an Error.
void link_tree(const std::filesystem::path& from, const std::filesystem::path& to,
               const std::vector<std::string>& except);

/// "'x' is already there", with the advice to pass --force.
[[nodiscard]] Error already_there(const std::filesystem::path& path);

/// The names in a directory, sorted.
[[nodiscard]] std::vector<std::string> names_in(const std::filesystem::path& directory);
/// The paths of the entries of a directory, sorted by name.
[[nodiscard]] std::vector<std::filesystem::path> entries_in(const std::filesystem::path& directory);
/// The names of the regular files in `directory`, links to files included, that begin with `prefix` and end
/// with `suffix`; sorted.
[[nodiscard]] std::vector<std::string> files_in(const std::filesystem::path& directory,
                                                std::string_view prefix, std::string_view suffix);

}  // namespace accel
