#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "core/launch/agent/plan.hpp"
#include "core/launch/output/pipe.hpp"

namespace accel::launch {

struct SpawnRequest {
  std::vector<std::string> command;      ///< command[0] is a path; PATH is not searched.
  std::vector<std::string> environment;  ///< The complete environment, as "NAME=value".
  std::vector<int> cpus;                 ///< Those it may run on; empty for those of this process.
  /// The standard input; -1 for /dev/null. With a terminal the process has a session of its own, so that it
  /// may read although it is not in the foreground process group.
  int stdin_fd = -1;
  int announce_fd = -1;  ///< The child writes its pid here before exec; -1 for nowhere.
  /// SIGTERM, SIGUSR1 and SIGUSR2 stay blocked until the program unblocks them, so that none ends it before
  /// it catches them (base/stop_request.hpp).
  bool blocks_stop_signals = false;
};

/// This process's environment with `variables` over it, as "NAME=value".
std::vector<std::string> merged_environment(const Variables& variables);

/// A process that was started, and the read ends of its output.
struct Child {
  pid_t pid = -1;
  Fd pidfd;  ///< It becomes readable once the process has ended. An old kernel has a pipe in its place.
  Fd out;    ///< The read end of stdout, non-blocking.
  Fd err;    ///< The read end of stderr, non-blocking.
};

/// Starts a process in a process group of its own, with signals as reset_signals() leaves them. The kernel
/// kills it when the thread that called spawn() ends, so call it from the main thread. A program that cannot
/// be executed is an Error of kind kUsage.
Child spawn(const SpawnRequest& request);

/// How a process ended.
struct ExitStatus {
  int code = 0;       ///< The exit code, if signal is 0.
  int signal = 0;     ///< The signal that ended it; 0 if it exited.
  bool known = true;  ///< If false, the process could not be waited for, and may still run.

  [[nodiscard]] bool success() const { return known && code == 0 && signal == 0; }
  bool operator==(const ExitStatus&) const = default;
};

/// "exit code 3", "killed by SIGSEGV (Segmentation fault)", "exit code 139 (128 + SIGSEGV)".
std::string text_of(const ExitStatus& status);

/// How long to wait for a process after SIGKILL. A process in an uninterruptible system call may stay longer,
/// and is left behind.
inline constexpr std::chrono::seconds kKillTime{10};

/// Kills what is left of the process group of a leader that has ended, and then reaps the leader: until then
/// no other process can get its number. A status that does not come within `patience` is not `known`; a
/// debugger may withhold it.
ExitStatus reap_with_group(pid_t leader, std::chrono::milliseconds patience = kKillTime);

/// Kills the process group of a leader that may still run, and reaps the leader; false, after `patience`, if
/// it has not ended.
bool kill_with_group(pid_t leader, std::chrono::milliseconds patience = kKillTime);

/// Text such as "4711 (sleep)". A process chooses its own name, so control characters in it are replaced.
std::string text_of_process(pid_t pid);

/// The children of a process, of this one if `parent` is 0, including those that it had before exec.
std::vector<pid_t> child_processes(pid_t parent = 0);

/// Waits until SIGSTOP, which it has got, has stopped the child, or until it ends; at most a second. A rank
/// that still ran could take from the terminal what is meant for the shell.
void wait_until_stopped(pid_t child);

/// Waits until the child ends, and reaps it; false if it does not end within `patience`.
bool reap_within(pid_t child, std::chrono::milliseconds patience);

/// Whether a child is not to be reaped or killed here.
using IsSpared = std::function<bool(pid_t)>;

/// Reaps orphans that have ended: processes whose parent died and that therefore are children of this process
/// (see PR_SET_CHILD_SUBREAPER).
void reap_adopted_children(const IsSpared& is_spared);

/// Kills and reaps orphans. Returns those that have not ended `patience` after SIGKILL.
std::vector<pid_t> kill_adopted_children(const IsSpared& is_spared,
                                         std::chrono::milliseconds patience = kKillTime);

}  // namespace accel::launch
