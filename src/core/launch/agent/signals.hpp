#pragma once

#include <sys/types.h>

#include <csignal>
#include <optional>

#include "core/launch/output/pipe.hpp"

namespace accel::launch {

/// A signal that has arrived.
struct Arrival {
  int signal = 0;
  /// The sender. For SIGCHLD it is the first child that has ended since the previous SIGCHLD was read,
  /// because the kernel keeps only the first of several.
  pid_t pid = 0;
};

/// What the workers get when the launcher gets `signal`. A program that saves its state when it is asked to
/// end seldom knows SIGHUP, so that it gets SIGTERM.
inline int passed_on(int signal) { return signal == SIGHUP ? SIGTERM : signal; }

/// Signals that nobody has taken when the queue ended.
struct LateSignals {
  bool interrupt = false;  ///< SIGINT, SIGTERM or SIGHUP.
  bool save = false;       ///< SIGUSR1 or SIGUSR2.
};

/// While it lives, SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGTSTP and SIGCHLD arrive at a descriptor
/// instead of a handler. SIGINT and SIGHUP stay ignored where they are (nohup). SIGPIPE is ignored, and
/// orphaned descendants become children of this process. At its end it puts what is left into `late`.
class SignalQueue {
 public:
  explicit SignalQueue(LateSignals& late);
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;
  ~SignalQueue();

  [[nodiscard]] int fd() const { return fd_.get(); }
  /// The next signal that has arrived; absent if there is none.
  std::optional<Arrival> next();

 private:
  LateSignals& late_;
  sigset_t previous_{};
  struct sigaction previous_pipe_ {};
  struct sigaction previous_child_ {};
  Fd fd_;
};

}  // namespace accel::launch
