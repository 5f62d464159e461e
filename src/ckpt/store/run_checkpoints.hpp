#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace accel::ckpt {

/// What set_aside() puts behind the name of a checkpoint that is not whole.
inline constexpr std::string_view kDamaged = ".damaged";
/// What set_aside() puts behind the name of a checkpoint that a run was rolled back from.
inline constexpr std::string_view kDiscarded = ".discarded";

/// The checkpoints of one run: `<root>/checkpoint_<step>`. Each is complete and durable, or not there.
///
/// A checkpoint is written into `checkpoint_<step>.<writer>.incomplete` and renamed when all of it is on
/// stable storage. The writer is an attempt of a run: another one, which may have been thought dead, has
/// another directory. An old one is renamed to `checkpoint_<step>.deleting` before it is removed. One process
/// alone may use this class; other ranks write into the directory that begin() made, and tell that process
/// when they are done.
class RunCheckpoints {
 public:
  /// Who writes checkpoints, as begin(), commit() and incomplete_path_of() need to know.
  struct Writer {
    std::string attempt;  ///< A text that the ranks of one attempt share, and no other attempt of any run.
    /// The directory and the token of the RunLock under which rank 0 writes; empty for none.
    std::filesystem::path locked = {};
    std::string lock_token = {};
  };

  explicit RunCheckpoints(std::filesystem::path root) : RunCheckpoints(std::move(root), Writer()) {}
  RunCheckpoints(std::filesystem::path root, Writer writer);

  /// Whether `name` is that of a save or a removal that has not finished: sweep() removes it.
  [[nodiscard]] static bool is_unfinished(std::string_view name);
  /// Removes what an interrupted save or removal left behind. What cannot be removed is a warning.
  void sweep();
  /// The steps of the complete checkpoints, ascending.
  [[nodiscard]] std::vector<std::int64_t> steps() const;
  /// The first entry of the root, by name, that sweep() keeps and whose name begins as that of a checkpoint,
  /// complete or not. A run that starts from scratch must not find any.
  [[nodiscard]] std::optional<std::string> first_name() const;
  /// The first entry of the root that has the name of the checkpoint of a step behind `step` and is not a
  /// directory: a file, or a link to nowhere. That checkpoint could not be committed.
  [[nodiscard]] std::optional<std::string> taken_name(std::int64_t step) const;
  [[nodiscard]] std::filesystem::path path_of(std::int64_t step) const;
  /// Whether a training wrote the checkpoint of `step`, as the files beside its parts show; it may be
  /// damaged. A directory of another program may have the same name.
  [[nodiscard]] bool is_of_training(std::int64_t step) const;
  /// Where the checkpoint of `step` is written before it is complete.
  [[nodiscard]] std::filesystem::path incomplete_path_of(std::int64_t step) const;

  /// Makes an empty incomplete directory. Throws Error (kFailure) if there is a checkpoint of that step, or
  /// if another run has taken over the lock.
  void begin(std::int64_t step);
  /// Syncs every directory of the incomplete checkpoint, renames it, and syncs the root. Whoever wrote the
  /// files in it must have synced them. Throws Error (kFailure) if another run has taken over the lock.
  void commit(std::int64_t step);
  /// Removes the checkpoint of `step`: renames it durably first, so that a crash never leaves a part of it
  /// under its own name.
  void remove(std::int64_t step);
  /// Renames the checkpoint of `step` durably to `checkpoint_<step><suffix>`, or with a number behind it if
  /// that name is taken. Returns the new path. It is not one of steps() then, and nothing removes it.
  std::filesystem::path set_aside(std::int64_t step, std::string_view suffix);
  /// Removes the incomplete checkpoint of `step` after a failed save. What cannot be removed is a warning,
  /// and sweep() tries again.
  void discard(std::int64_t step) noexcept;
  /// Removes the oldest checkpoints that trainings wrote until `limit` are left, and beside them that of the
  /// step `kept`; a limit of 0 keeps all. What cannot be
  /// removed is a warning, as the newest checkpoint is complete and the run can go on. So is an older
  /// directory that no training wrote, which stays; one object says it once.
  void prune(std::int64_t limit, std::optional<std::int64_t> kept = std::nullopt);

 private:
  void require_own_lock() const;

  std::filesystem::path root_;
  Writer writer_;
  std::set<std::int64_t> foreign_;  ///< The steps of directories that prune() left with a warning.
};

}  // namespace accel::ckpt
