#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace accel::launch {

/// From which checkpoints the one run of an output_dir began because training.checkpoint.resume named them.
/// `began_from.json` in the output_dir says it, so that a launch of the same command line goes on with the
/// run and begins nowhere else. Machine 0 alone reads and writes the file, with the lock of claim_output().
class Origin {
 public:
  /// Reads nothing: only a run whose training.checkpoint.resume is a path asks what the file says.
  explicit Origin(const std::filesystem::path& output_dir) : file_(output_dir / "began_from.json") {}

  /// Reads the file; a missing one says nothing. Throws Error (kCorrupt).
  void read();
  /// Whether the run began from `checkpoint`, which need not be there any more.
  [[nodiscard]] bool is_from(const std::filesystem::path& checkpoint) const;
  /// Whether `checkpoint` is what the run was last rolled back to.
  [[nodiscard]] bool is_rolled_back_to(const std::filesystem::path& checkpoint) const;

  /// Notes durably that the run begins from `checkpoint`: anew, or, after read(), a second time.
  void begin_from(const std::filesystem::path& checkpoint, bool is_new_run, bool is_rollback);
  /// Notes durably that a new run begins from no checkpoint.
  void begin_from_nothing();

  [[nodiscard]] const std::filesystem::path& file() const { return file_; }

 private:
  std::filesystem::path file_;
  std::vector<std::string> checkpoints_;  ///< The oldest beginning comes first.
  /// Names of one checkpoint; none if the run was not rolled back.
  std::vector<std::string> rolled_back_to_;
};

}  // namespace accel::launch
