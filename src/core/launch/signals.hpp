#pragma once

#include <csignal>
#include <optional>

#include "core/launch/fd.hpp"

namespace accel::core {

/// While it lives, SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGCHLD arrive at a descriptor instead of a handler,
/// SIGPIPE is ignored, and orphaned descendants become our children.
class SignalQueue {
 public:
  SignalQueue();
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;
  ~SignalQueue();

  [[nodiscard]] int fd() const { return fd_.get(); }
  /// The next signal that has arrived.
  std::optional<int> next();
  /// The mask from before, for the programs that are started.
  [[nodiscard]] const sigset_t& previous_mask() const { return previous_; }

 private:
  sigset_t previous_{};
  struct sigaction previous_pipe_ {};
  Fd fd_;
};

}  // namespace accel::core
