#pragma once

namespace accel {

/// Every exit code of every command. Scripts may rely on them; `man accel` prints this table.
enum class ExitCode : int {
  kSuccess = 0,
  kFailure = 1,            ///< Anything without a code of its own.
  kUsage = 2,              ///< A wrong command line or configuration.
  kFindings = 3,           ///< `verify` or `diff` found something.
  kCheckpointMissing = 4,  ///< The checkpoint is not there, or is incomplete.
  kCheckpointCorrupt = 5,  ///< The checkpoint's bytes contradict themselves.
  kWorkerFailed = 6,       ///< A launched process failed.
  kPreempted = 7,          ///< Stopped for preemption after saving.
  kInterrupted = 130,      ///< SIGINT.
  kTerminated = 143,       ///< SIGTERM.
};

constexpr int to_int(ExitCode code) { return static_cast<int>(code); }

}  // namespace accel
