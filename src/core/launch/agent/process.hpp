#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "core/launch/agent/pipe.hpp"
#include "core/launch/agent/plan.hpp"

namespace accel::core {

struct SpawnRequest {
  std::vector<std::string> command;      ///< command[0] is a path; there is no search.
  std::vector<std::string> environment;  ///< "NAME=value", complete.
  int announce_fd = -1;  ///< The child writes its pid here before it becomes the program; -1: nowhere.
};

/// This process's environment with `variables` over it, as "NAME=value".
std::vector<std::string> merged_environment(const Variables& variables);

/// A process that was started, and the read ends of what it prints.
struct Child {
  pid_t pid = -1;
  Fd pidfd;  ///< Readable once the process has ended.
  Fd out;    ///< Not blocking.
  Fd err;    ///< Not blocking.
};

/// Starts a process in a process group of its own, with no standard input, that the kernel kills when this
/// one dies, and with signals as reset_signals() leaves them. Call from the main thread: the death signal
/// follows the thread that forked. A program that cannot be executed is an Error of kind kUsage.
Child spawn(const SpawnRequest& request);

/// How a process ended.
struct ExitStatus {
  int code = 0;       ///< Meaningful when signal is 0.
  int signal = 0;     ///< 0: it exited.
  bool known = true;  ///< false: the process cannot be waited for, so nobody knows how it ended, or whether.

  [[nodiscard]] bool success() const { return known && code == 0 && signal == 0; }
  bool operator==(const ExitStatus&) const = default;
};

/// "exit code 3", "killed by SIGSEGV (Segmentation fault)", "exit code 139 (128 + SIGSEGV)".
std::string text_of(const ExitStatus& status);

/// How long a process that was sent SIGKILL is waited for. One that hangs in a system call which nothing can
/// interrupt stays longer, and is left behind.
inline constexpr std::chrono::seconds kKillTime{10};

/// Kills what is left of the process group of a leader that has ended, then reaps the leader. In this order,
/// for until it is reaped nobody else can get its number. A status that cannot be had within `patience` is
/// not `known`: a debugger may keep it to itself.
ExitStatus reap_with_group(pid_t leader, std::chrono::milliseconds patience = kKillTime);

/// Kills the process group of a leader that may still run, and reaps the leader; false, after `patience`, if
/// it has not ended.
bool kill_with_group(pid_t leader, std::chrono::milliseconds patience = kKillTime);

/// "4711 (sleep)"; the name is the process's own, so control characters in it are replaced.
std::string text_of_process(pid_t pid);

/// This process's children, also those that it had before it became this program.
std::vector<pid_t> child_processes();

/// Whether the child ends in that time; then it is reaped.
bool reap_within(pid_t child, std::chrono::milliseconds patience);

/// Whether somebody else looks after a child.
using IsSpared = std::function<bool(pid_t)>;

/// Reaps the processes that have become our children because their parent died (see PR_SET_CHILD_SUBREAPER),
/// and have ended.
void reap_adopted_children(const IsSpared& is_spared);

/// Kills and reaps them, until none is left, or those that are had SIGKILL `patience` ago; returns these.
std::vector<pid_t> kill_adopted_children(const IsSpared& is_spared,
                                         std::chrono::milliseconds patience = kKillTime);

}  // namespace accel::core
