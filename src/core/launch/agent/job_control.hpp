#pragma once

#include <termios.h>

#include <chrono>
#include <optional>

namespace accel::launch {

/// The standard input of this process, which a worker may share, and the job of a shell that this process is.
///
/// A worker that reads a terminal has a session of its own (SpawnRequest::stdin_fd). There it has no
/// controlling terminal, so that the kernel lets it read although it is not in the foreground process group.
/// Ctrl-C and Ctrl-Z reach this process alone, which passes them on.
class JobControl {
 public:
  using Clock = std::chrono::steady_clock;

  /// Remembers the modes of the terminal if this process is in its foreground.
  JobControl();
  JobControl(const JobControl&) = delete;
  JobControl& operator=(const JobControl&) = delete;
  /// Gives the terminal its modes back: a worker that is killed while it reads a line leaves it without echo.
  ~JobControl();

  /// What a worker may read: the standard input, or -1 for nothing. A job that begins in the background of a
  /// terminal gets nothing, because it would take the input of the shell.
  [[nodiscard]] static int readable_stdin();

  /// Stops this process as SIGTSTP does, which must be blocked, until it is continued. Returns how long that
  /// took. The modes of the terminal are the same afterwards if this process is in the foreground then.
  [[nodiscard]] Clock::duration stop() const;

 private:
  std::optional<termios> modes_;
};

}  // namespace accel::launch
