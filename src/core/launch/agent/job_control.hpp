#pragma once

#include <termios.h>

#include <chrono>
#include <optional>
#include <span>

#include "core/launch/agent/signals.hpp"
#include "core/launch/agent/worker.hpp"
#include "core/launch/output/terminal.hpp"

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

  /// What a worker may read: the standard input, or -1 for nothing. A worker that does not read it gets
  /// nothing, and neither does one of a job that begins in the background of a terminal, because it would
  /// take the input of the shell.
  [[nodiscard]] int stdin_of(const WorkerPlan& worker);

  /// Stops this process as SIGTSTP does, which must be blocked, until it is continued. Returns how long that
  /// took. The modes of the terminal are the same afterwards if this process is in the foreground then.
  ///
  /// The caller has stopped `workers` before and continues them afterwards. A worker that reads the terminal
  /// must not go on in the background, where it would take the input of the shell. Then this process says so
  /// on `terminal` and stops again, as SIGTTIN does, until it is in the foreground or has to end.
  [[nodiscard]] Clock::duration stop(std::span<const Worker> workers, Terminal& terminal,
                                     SignalQueue& signals) const;

 private:
  std::optional<termios> modes_;
  std::optional<int> reader_;  ///< The rank that got the standard input.
};

}  // namespace accel::launch
