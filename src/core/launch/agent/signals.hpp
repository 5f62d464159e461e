#pragma once

#include <sys/types.h>

#include <csignal>
#include <optional>

#include "core/launch/agent/pipe.hpp"

namespace accel::core {

/// A signal that has arrived.
struct Arrival {
  int signal = 0;
  /// The sender's. SIGCHLD: the child that ended first of those that have ended since the last SIGCHLD was
  /// taken, for the kernel keeps the first of several.
  pid_t pid = 0;
};

/// While it lives, SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGCHLD arrive at a descriptor instead of a handler,
/// but for SIGINT and SIGHUP where they are ignored (nohup); SIGPIPE is ignored, and orphaned descendants
/// become our children.
class SignalQueue {
 public:
  SignalQueue();
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;
  ~SignalQueue();

  [[nodiscard]] int fd() const { return fd_.get(); }
  /// The next signal that has arrived.
  std::optional<Arrival> next();

 private:
  sigset_t previous_{};
  struct sigaction previous_pipe_ {};
  struct sigaction previous_child_ {};
  Fd fd_;
};

}  // namespace accel::core
