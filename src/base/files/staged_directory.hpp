#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/files/atomic_file.hpp"
#include "base/files/directory.hpp"
#include "base/files/file.hpp"
#include "base/files/leftover.hpp"

namespace accel {

/// A set of files that appears in a directory together, complete and durable, or not at all.
///
/// The files are written into a directory of their own, staging(). commit() syncs them and moves them to the
/// target:
///
/// - The target does not exist. The staging directory, `NAME.incomplete-...` beside it, is renamed to the
///   target.
/// - The target is a directory, and none of the names is taken. The files are linked from the staging
///   directory, which is hidden in the target, the seal last. All other entries of the target stay.
/// - A name is taken, the target holds files of an earlier output (`belongs`), a directory was written, or
///   the file system has no hard links. A new directory, which holds what was written and hard links or
///   copies of all other entries, is exchanged with the target atomically, and the old one is removed. Under
///   kRefuse the first two of these cases are an Error. A single file that replaces one of the same name is
///   only renamed.
///
/// Without commit() the destructor removes all that was made. After a kill or a loss of power at any point
/// the target is absent, as it was, or complete. A target without its seal counts as absent, and the next
/// StagedDirectory on it removes its files together with other leftovers of dead processes.
class StagedDirectory {
 public:
  using Existing = AtomicFile::Existing;

  struct Options {
    Existing existing = Existing::kRefuse;
    /// Whether a name at the top of the target is a file of an earlier output. Such files are a conflict
    /// under kRefuse and are gone after the commit under kReplace. Without it, only the names written
    /// conflict.
    std::function<bool(std::string_view name)> belongs = {};
  };

  /// Sweeps leftovers and makes the staging directory, with missing parents of the target. A target that is
  /// not a directory is an Error, and so is, under kRefuse, one that holds a file of an earlier output.
  StagedDirectory(const std::filesystem::path& target, Options options);
  StagedDirectory(StagedDirectory&&) = delete;
  StagedDirectory& operator=(StagedDirectory&&) = delete;
  ~StagedDirectory();

  /// The directory to write into. commit() takes all files and directories that lie here.
  [[nodiscard]] const std::filesystem::path& staging() const { return staging_; }
  /// Throws if `name` is taken in the target and may not be replaced. Call it before much is written.
  void check_free(std::string_view name) const;
  /// Calls check_free() and creates a file of that name in staging(). It may be closed or renamed before
  /// commit().
  [[nodiscard]] File create(std::string_view name);
  /// Names the seal, the file whose presence says that the others are complete (an index, `.metadata`). It
  /// appears last. Without this call the seal is the last name in sorted order.
  void set_seal(std::string_view name) { seal_ = name; }

  /// Syncs every file and directory in staging() and moves them to the target. Nothing may be written
  /// afterwards. An Error leaves the target as it was, unless the message says that only its durability is
  /// unknown.
  void commit();

  /// The target as given, made absolute and with symbolic links resolved.
  [[nodiscard]] const std::filesystem::path& target() const { return target_; }

 private:
  [[nodiscard]] std::vector<std::string> staged_names() const;
  [[nodiscard]] std::vector<std::string> taken_names(const std::vector<std::string>& names) const;
  [[nodiscard]] bool place_whole();
  [[nodiscard]] bool place_in(const std::vector<std::string>& names);
  void place_over(const std::string& name);
  void exchange(const std::vector<std::string>& names);
  void finish() noexcept;

  std::filesystem::path target_;
  Options options_;
  NewDirectories parents_;
  std::filesystem::path staging_;
  std::optional<LeftoverLock> lock_;  ///< The lock is held while staging_ exists.
  std::string seal_;
  bool inside_ = false;  ///< Whether staging_ lies in the target.
};

}  // namespace accel
