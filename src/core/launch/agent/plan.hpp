#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/launch/output/log_file.hpp"

namespace accel::launch {

/// Environment variables by name.
using Variables = std::map<std::string, std::string>;

struct WorkerPlan {
  int rank = 0;
  bool shows_out = false;            ///< Its stdout is shown.
  bool shows_err = true;             ///< Its stderr is.
  bool shows_only_warnings = false;  ///< Of its stderr only lines of our worker's log that warn are shown.
  bool has_prefix = false;           ///< Its lines are shown with its rank in front.
  bool reports_error = false;        ///< It is our worker, whose last error the report of the failure shows.
  bool reads_stdin = false;          ///< It has the launcher's standard input; the others have /dev/null.
  Variables variables;               ///< They are added to the launcher's environment, or override it.
  std::filesystem::path log_dir;     ///< It gets stdout.log and stderr.log, and must exist; empty for none.
  LogRotation log_rotation;          ///< That of both.
  std::vector<int> cpus;             ///< Those it may run on; empty for those of this process.
  std::filesystem::path flight_record;  ///< base/files/flight_record; empty for none.
  std::filesystem::path error_file;     ///< The value of TORCHELASTIC_ERROR_FILE.
};

/// Makes the lines that stand below the output of the ranks on a terminal, each of at most `columns`
/// characters; none if there is nothing to show. `step` is the step that rank 0 computes. It may wait for a
/// file system: a thread of its own calls it.
using StatusSource = std::function<std::vector<std::string>(std::int64_t step, std::size_t columns)>;

/// All that the supervisor needs to know.
struct LaunchPlan {
  std::string run_id;                ///< The value of TORCHELASTIC_RUN_ID, unique to this run.
  std::vector<std::string> command;  ///< command[0] is a path.
  std::vector<WorkerPlan> workers;   ///< The workers of this machine, in order of local ranks.
  int world_size = 0;                ///< The ranks of all machines.
  double grace_period_s = 30;
  double hang_timeout_s = 0;  ///< How long the ranks may make no progress; 0 for any time.
  /// The command is our worker, which catches the signals of base/stop_request.hpp.
  bool catches_stop_signals = false;
  bool saves_when_asked = false;  ///< It saves a checkpoint before it ends on such a signal.
  bool writes_events = false;     ///< stdout is for events.
  bool moves_out = false;         ///< stdout of workers is shown on stderr.
  StatusSource status;            ///< Empty if nothing is to be drawn below the output.
  /// A private temporary directory. The caller removes it, or the guardian if the caller is killed.
  std::filesystem::path scratch;
};

}  // namespace accel::launch
