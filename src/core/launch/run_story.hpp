#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/exit_code.hpp"

namespace accel::launch {

/// How the last attempt of a training ended.
struct RunEnd {
  double time = 0;  ///< Seconds since 1970.
  ExitCode code = ExitCode::kSuccess;
  std::string report;     ///< That of the failure; empty without one.
  std::int64_t step = 0;  ///< The step in which a rank was last; 0 if that is not known.
};

/// Writes the end of an attempt into `run_end.json` of its output_dir, which the caller has locked. A file
/// that cannot be written is a message for --verbose.
void write_run_end(const std::filesystem::path& output_dir, const RunEnd& end) noexcept;
/// Removes it, when the next attempt begins.
void remove_run_end(const std::filesystem::path& output_dir) noexcept;

/// What the files of a training say of it.
struct RunStory {
  std::optional<RunEnd> end;   ///< Absent while it runs, and if its launcher was killed.
  std::int64_t max_steps = 0;  ///< 0 if not known.
  std::int64_t step = 0;       ///< The step of the last line of metrics.jsonl; 0 if there is none.
  /// The loss of the last line of a step; NaN if it was not finite. Empty if there is no such line.
  std::optional<double> loss;
  /// The held-out loss of the last evaluation, as far as the end of metrics.jsonl has it.
  std::optional<double> eval_loss;
  std::string stopped_early;    ///< Why the run ended before its last step; empty if it did not.
  double line_time = 0;         ///< When that line was written, in seconds since 1970.
  double step_time_s = 0;       ///< Seconds of a step, as that line says.
  std::int64_t checkpoint = 0;  ///< The step of the newest whole checkpoint; 0 if there is none.
  std::filesystem::path checkpoint_path;
};

/// Reads `output_dir`. Nothing if it is not that of a training.
[[nodiscard]] std::optional<RunStory> read_run_story(const std::filesystem::path& output_dir);
/// The same without the newest checkpoint, for which every checkpoint may have to be looked at.
[[nodiscard]] std::optional<RunStory> read_short_run_story(const std::filesystem::path& output_dir);

/// What has become of a run.
enum class RunState {
  kRunning,
  kFinished,
  kStopped,  ///< It was asked to end, and has saved.
  kFailed,   ///< It ended with another exit code.
  kKilled,   ///< Its launcher ended without a word.
};
/// `lives`: processes of the run are there.
[[nodiscard]] RunState state_of(const RunStory& story, bool lives);

[[nodiscard]] const char* name_of(RunState state);
/// Why a run has failed, in one line: the error of the rank that failed first if it wrote one.
[[nodiscard]] std::string cause_of(const RunEnd& end);
/// The state in one line, with the cause of a failure.
[[nodiscard]] std::string state_text(const RunStory& story, RunState state);

/// The story in lines. `lives`: processes of the run are there; `now` is in seconds since 1970.
[[nodiscard]] std::vector<std::string> lines_of(const RunStory& story, bool lives, double now);

[[nodiscard]] nlohmann::ordered_json document_of(const RunStory& story);

}  // namespace accel::launch
