#pragma once

namespace accel {

/// Every exit code of every command. Scripts may rely on them; `man accel` prints this table.
enum class ExitCode : int {
  kSuccess = 0,
  kFailure = 1,            ///< The error has no code of its own.
  kUsage = 2,              ///< The command line or configuration is wrong.
  kFindings = 3,           ///< `verify` or `diff` found something.
  kCheckpointMissing = 4,  ///< The checkpoint is not there, or is incomplete.
  kCheckpointCorrupt = 5,  ///< The checkpoint's bytes contradict themselves.
  kWorkerFailed = 6,       ///< A launched process failed.
  kPreempted = 7,          ///< The run stopped for preemption after saving.
  kHungUp = 129,           ///< SIGHUP ended the command.
  kInterrupted = 130,      ///< SIGINT ended the command.
  kUserSignal1 = 138,      ///< SIGUSR1 ended the command.
  kUserSignal2 = 140,      ///< SIGUSR2 ended the command.
  kTerminated = 143,       ///< SIGTERM ended the command.
};

/// The exit code of a command that a signal has ended is this and the number of the signal, as in a shell.
inline constexpr int kSignalBase = 128;

constexpr int to_int(ExitCode code) { return static_cast<int>(code); }

}  // namespace accel
