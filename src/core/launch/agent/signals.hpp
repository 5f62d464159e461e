#pragma once

#include <sys/types.h>

#include <csignal>
#include <optional>
#include <string>

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
/// end seldom knows SIGHUP, so that it gets SIGTERM. Our own worker (`is_ours`) saves on SIGTERM alone, and
/// is to save on Ctrl-C, too.
inline int passed_on(int signal, bool is_ours) {
  return signal == SIGHUP || (is_ours && signal == SIGINT) ? SIGTERM : signal;
}

/// Says what becomes of a request to end; `saves`: our worker saves a checkpoint first.
[[nodiscard]] std::string text_of_request(int signal, bool is_ours, bool saves);

/// Signals that nobody has taken when the queue ended.
struct LateSignals {
  int interrupt = 0;  ///< The last SIGINT, SIGTERM or SIGHUP; 0 without one.
  bool save = false;  ///< SIGUSR1 or SIGUSR2.
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
