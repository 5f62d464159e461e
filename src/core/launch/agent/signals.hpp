#pragma once

#include <poll.h>
#include <sys/types.h>

#include <csignal>
#include <optional>
#include <string>
#include <vector>

#include "base/host/signal_source.hpp"
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

/// While it lives, the signals of `source`, SIGTSTP and SIGCHLD wait for next(). SIGPIPE is ignored, and
/// orphaned descendants become children of this process.
class SignalQueue {
 public:
  /// Throws what SignalSource::hold() throws.
  explicit SignalQueue(SignalSource& source);
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;
  ~SignalQueue();

  void add_polls(std::vector<pollfd>& polls) const;
  /// The next signal that has arrived; absent if there is none.
  std::optional<Arrival> next();
  [[nodiscard]] bool has_to_end() { return source_.has_to_end(); }
  /// From here on nobody calls next(); see SignalSource::close().
  void close() { source_.close(); }

 private:
  SignalSource& source_;
  sigset_t previous_{};
  struct sigaction previous_pipe_ {};
  struct sigaction previous_child_ {};
  Fd fd_;
};

}  // namespace accel::launch
