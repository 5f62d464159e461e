#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/atomic_file.hpp"
#include "base/directory.hpp"
#include "base/file.hpp"
#include "base/leftover.hpp"

namespace accel {

/// A set of files that appears in a directory together, complete and durable, or not at all.
///
/// The files are written into a directory of their own, staging(). commit() syncs them and brings them to the
/// target:
///
/// - no target: the staging directory, `NAME.incomplete-...` beside it, is renamed to the target;
/// - the target is a directory and none of the names is taken: the staging directory, hidden in the target,
///   is emptied into it, the seal last, and all other entries of the target stay;
/// - some are taken, files of an earlier output are there (`belongs`), a directory was written, or there are
/// no
///   hard links: a whole new directory (what was written, and hard links or copies of all other entries) is
///   exchanged with the target in one instant, and the old one removed. Under kRefuse the first two are an
///   Error. A single file that replaces just its namesake is only renamed.
///
/// Without commit() the destructor removes all that was made. Whatever happens in between, a kill or a loss
/// of power included, the target is absent, as it was, or complete; one without its seal counts as absent,
/// and the next StagedDirectory on the same target takes its files away with all other leftovers of dead
/// processes.
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
  /// no directory, or under kRefuse one that holds a file that belongs, is an Error.
  StagedDirectory(const std::filesystem::path& target, Options options);
  StagedDirectory(StagedDirectory&&) = delete;
  StagedDirectory& operator=(StagedDirectory&&) = delete;
  ~StagedDirectory();

  /// Where to write. commit() takes all that lies here, files and directories, whoever wrote them.
  [[nodiscard]] const std::filesystem::path& staging() const { return staging_; }
  /// Throws if `name` is taken in the target and may not be replaced: for knowing before much is written.
  void check_free(std::string_view name) const;
  /// check_free, then a new file of that name in staging(). It may be closed or moved about before commit().
  [[nodiscard]] File create(std::string_view name);
  /// Names the file whose presence says that the others are complete (an index, `.metadata`): it appears
  /// last. Without this the last name in sorted order does.
  void set_seal(std::string_view name) { seal_ = name; }

  /// Syncs every file and directory in staging() and brings them to the target. Nothing may be written
  /// afterwards. An Error here leaves the target as it was, unless the message says that only its durability
  /// is unknown.
  void commit();

  /// As given, made absolute and free of symbolic links.
  [[nodiscard]] const std::filesystem::path& target() const { return target_; }

 private:
  void stage();
  [[nodiscard]] std::vector<std::string> staged_names() const;
  [[nodiscard]] std::vector<std::string> taken_names(const std::vector<std::string>& names) const;
  [[nodiscard]] bool place_whole();
  [[nodiscard]] bool place_in(const std::vector<std::string>& names);
  void place_over(const std::string& name);
  void exchange(const std::vector<std::string>& names);
  void finish() noexcept;
  void discard() noexcept;

  std::filesystem::path target_;
  Options options_;
  NewDirectories parents_;
  std::filesystem::path staging_;
  std::optional<LeftoverLock> lock_;  ///< Held while staging_ is ours.
  std::string seal_;
  bool inside_ = false;  ///< staging_ lies in the target.
};

}  // namespace accel
