#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/file.hpp"

namespace accel {

/// Operations on directory entries. Each is one system call that base/fault.hpp can make fail, and every
/// failure is an Error that names the path. None follows a symbolic link at the end of a path.

/// rename(2), which replaces what is at `to`. Not durable before sync_directory().
void rename_entry(const std::filesystem::path& from, const std::filesystem::path& to);
/// Renames unless `to` is taken: then false. Atomic where the file system can; otherwise looks first.
[[nodiscard]] bool rename_to_free(const std::filesystem::path& from, const std::filesystem::path& to);
/// Swaps two entries in one instant; false where the file system cannot.
[[nodiscard]] bool exchange_entries(const std::filesystem::path& a, const std::filesystem::path& b);

enum class LinkResult { kLinked, kTaken, kNotSupported };
/// A hard link `to` of `from`.
[[nodiscard]] LinkResult link_entry(const std::filesystem::path& from, const std::filesystem::path& to);

void make_directory(const std::filesystem::path& path);
void remove_file(const std::filesystem::path& path);
void remove_directory(const std::filesystem::path& path);
void set_mode(const std::filesystem::path& path, unsigned mode);
/// Removes `path` with all below it; nothing there is no Error.
void remove_tree(const std::filesystem::path& path);
/// remove_tree for destructors: a failure is a warning.
void remove_quietly(const std::filesystem::path& path) noexcept;
/// As remove_tree, for what others may be looking at: it is first renamed to `NAME.deleting-...`, durably, so
/// that a crash leaves no half of it under its name.
void discard_tree(const std::filesystem::path& path);

/// make_directories() that is undone by the destructor, unless keep() was called or others have put something
/// there.
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
  std::vector<std::filesystem::path> made_;  ///< Outermost first.
};

/// fsync of every file and directory at and below `directory`.
void sync_tree(const std::filesystem::path& directory);

/// Makes everything below directory `from` also appear below directory `to`, but for what is there already
/// and the top-level names in `except` (sorted): hard links of files, or copies where those are not possible;
/// new directories with the modes of the old. What it makes is synced. A file system mounted below `from` is
/// an Error.
void link_tree(const std::filesystem::path& from, const std::filesystem::path& to,
               const std::vector<std::string>& except);

/// "'x' is already there", with the advice to pass --force.
[[nodiscard]] Error already_there(const std::filesystem::path& path);

/// The names in a directory, sorted.
[[nodiscard]] std::vector<std::string> names_in(const std::filesystem::path& directory);
/// Their paths, in the same order.
[[nodiscard]] std::vector<std::filesystem::path> entries_in(const std::filesystem::path& directory);
/// Names of the regular files in `directory` (links to files included) that begin and end so; sorted.
[[nodiscard]] std::vector<std::string> files_in(const std::filesystem::path& directory,
                                                std::string_view prefix, std::string_view suffix);

}  // namespace accel
