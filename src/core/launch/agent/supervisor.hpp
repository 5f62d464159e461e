#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/host/memory.hpp"
#include "base/host/signal_source.hpp"
#include "core/launch/agent/peers.hpp"
#include "core/launch/agent/plan.hpp"
#include "core/launch/agent/process.hpp"
#include "core/launch/hang/hang_report.hpp"

namespace accel::launch {

/// How one worker ended.
struct WorkerOutcome {
  int rank = 0;
  std::int64_t ended_at_ns = 0;  ///< When the launcher saw its end, in nanoseconds since 1970.
  pid_t pid = 0;
  ExitStatus status;
  /// It ended before the group was asked to stop, or it failed while it saved a checkpoint because of that.
  bool on_its_own = false;
  int order = 0;                        ///< Its place among the workers that ended, from 0.
  std::vector<std::string> last_lines;  ///< The end of stderr, or of stdout if stderr is empty.
  std::filesystem::path log;            ///< The file that holds the last lines; empty for none.
  std::filesystem::path error_file;
};

struct GroupOutcome {
  std::vector<WorkerOutcome> workers;  ///< One entry per rank of this machine, in order of ranks.
  int interrupted_by = 0;              ///< SIGINT, SIGTERM or SIGHUP, if one of them ended the run.
  /// The time at which the workers were asked to stop, in nanoseconds since 1970.
  std::optional<std::int64_t> stopped_at_ns = std::nullopt;
  bool catches_stop_signals = false;  ///< What LaunchPlan says.
  int world_size = 0;                 ///< The ranks of all machines.
  int interrupted_late = 0;           ///< SIGINT, SIGTERM or SIGHUP that came when all workers had ended.
  std::optional<Hang> hang = std::nullopt;  ///< Set if the workers were ended because they made no progress.
  std::int64_t hung_at_ns = 0;              ///< When that was seen, in nanoseconds since 1970.
  /// How many processes the kernel has killed meanwhile for want of memory, as far as it says.
  OomKills oom_kills = {};
  std::vector<std::string> gpu_errors = {};  ///< What the kernel's log has said meanwhile of errors of GPUs.
  bool was_asked_to_save = false;            ///< SIGUSR1 or SIGUSR2 was passed on to our worker.
  /// The logs that a file server had not taken when a second signal came.
  std::vector<std::filesystem::path> incomplete_logs = {};
};

/// Starts the workers, shows and logs what they print, passes signals on, and returns when all of them and
/// their descendants have ended.
///
/// The first failure ends the group: each process group gets SIGTERM, and after the grace period SIGKILL.
/// Exit code 7 (stopped for preemption) is not a failure, but the others have to follow within the grace
/// period. SIGINT, SIGTERM, SIGHUP (as SIGTERM), SIGUSR1 and SIGUSR2 are passed on to the workers; a second
/// SIGINT, SIGTERM or SIGHUP kills them at once. With SIGTSTP the workers stop as well, until this process is
/// continued. The output of rank 0 goes to `out_fd` and `err_fd` as it is. Of the
/// others only stderr is shown, on `err_fd`, with "[rank1] " before each line.
///
/// `signals` is left closed; a signal that has come before is thrown as by SignalSource::hold().
/// With `peers`, failures and signals of other machines end the group, too, and it returns when the run is
/// over on all of them.
GroupOutcome supervise(const LaunchPlan& plan, int out_fd, int err_fd, SignalSource& signals,
                       Peers* peers = nullptr);

}  // namespace accel::launch
