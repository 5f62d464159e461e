#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

#include "core/launch/agent/plan.hpp"
#include "core/launch/agent/process.hpp"

namespace accel::core {

/// How one worker ended.
struct WorkerOutcome {
  int rank = 0;
  pid_t pid = 0;
  ExitStatus status;
  bool on_its_own = false;              ///< Before anybody asked the group to stop.
  int order = 0;                        ///< 0 ended first.
  std::vector<std::string> last_lines;  ///< Of stderr, or of stdout if stderr was silent.
  std::filesystem::path log;            ///< The file that holds them; empty: none.
  std::filesystem::path error_file;
};

struct GroupOutcome {
  std::vector<WorkerOutcome> workers;  ///< By rank.
  int interrupted_by = 0;              ///< SIGINT or SIGTERM, if one of them ended the run.
  /// When the workers were asked to stop, in nanoseconds since 1970.
  std::optional<std::int64_t> stopped_at_ns = std::nullopt;
};

/// Starts the workers, shows and logs what they print, passes signals on, and returns when every one of them
/// and of their descendants is gone.
///
/// The first failure ends the group: SIGTERM, after the grace period SIGKILL to each process group. Exit code
/// 7 (stopped for preemption) is no failure, but the others have to follow within the grace period. SIGINT,
/// SIGTERM, SIGHUP (as SIGTERM) and SIGUSR1 are passed on; the second SIGINT or SIGTERM kills at once. Rank
/// 0's output goes to `out_fd` and `err_fd` as it is, that of the others, stderr alone, to `err_fd` with
/// "[rank1] " before each line.
GroupOutcome supervise(const LaunchPlan& plan, int out_fd, int err_fd);

}  // namespace accel::core
