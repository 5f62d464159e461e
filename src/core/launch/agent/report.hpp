#pragma once

#include <optional>
#include <string>

#include "base/exit_code.hpp"
#include "core/launch/agent/supervisor.hpp"

namespace accel::launch {

/// The error that a worker wrote to TORCHELASTIC_ERROR_FILE, in the form of torchelastic:
/// {"message": {"message": "...", "extraInfo": {...}}} or {"message": "..."}.
struct WorkerError {
  std::string message;
  std::string kind;  ///< The kind of our worker's Error, such as "usage"; empty for other programs.
};

/// The error in `file`; absent if the worker wrote none, or none of this form.
std::optional<WorkerError> read_worker_error(const std::filesystem::path& file);

/// The worker whose failure came first; absent if none failed before the group was asked to stop. It is the
/// one that ended first if that wrote no error file. Otherwise it is the one that wrote its error file first,
/// even if it ended after others, unless the launcher's own signal ended it.
const WorkerOutcome* root_cause(const GroupOutcome& group);

/// When the worker failed, in nanoseconds since 1970: when it wrote its error file, or ended.
std::int64_t time_of_failure(const WorkerOutcome& cause);

/// What restarts_without_progress() says of most failures.
inline constexpr int kUsualRestartsWithoutProgress = 2;

/// How many restarts in a row may make no progress before this failure counts as one that comes again: none
/// for an error of the configuration, of a checkpoint or of numbers that are not finite, of our own worker;
/// one if memory was missing; two for anything else.
int restarts_without_progress(const GroupOutcome& group, const WorkerOutcome& cause);

/// Whether the failure of our own worker is that a file is corrupt.
bool found_corrupt(const GroupOutcome& group, const WorkerOutcome& cause);

/// Whether somebody asked the group to end, so that it must not begin again.
bool is_asked_to_end(const GroupOutcome& group);

/// The exit code of a run.
ExitCode exit_code_of_group(const GroupOutcome& group);

/// The report of a failure, on one screen: the root cause with its own error, its last lines and the path of
/// its log, then a line for each other rank.
std::string failure_report(const GroupOutcome& group, const WorkerOutcome& cause, const std::string& host);

}  // namespace accel::launch
