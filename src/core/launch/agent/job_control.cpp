#include "core/launch/agent/job_control.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <ctime>

#include "base/log.hpp"

namespace accel::launch {
namespace {

/// The foreground process group of the terminal that is the standard input; -1 if it is not this process's
/// controlling terminal.
pid_t foreground_group() { return ::tcgetpgrp(STDIN_FILENO); }

/// The modes of the terminal, if this process may set them: in the background it would be stopped.
std::optional<termios> modes_of_terminal() {
  termios modes{};
  if (foreground_group() != ::getpgrp() || ::tcgetattr(STDIN_FILENO, &modes) != 0) return std::nullopt;
  return modes;
}

void set_modes(const std::optional<termios>& modes) {
  // TCSANOW does not wait for a terminal that Ctrl-S has stopped.
  if (modes && foreground_group() == ::getpgrp()) ::tcsetattr(STDIN_FILENO, TCSANOW, &*modes);
}

bool is_in_background() {
  const pid_t foreground = foreground_group();
  return foreground >= 0 && foreground != ::getpgrp();
}

/// Stops this process by `signal` until SIGCONT. Returns false if the kernel has ignored the signal, as it
/// does in an orphaned process group, which nobody would continue.
bool stop_by(int signal) {
  sigset_t stop;
  sigset_t go_on;
  sigset_t before;
  ::sigemptyset(&stop);
  ::sigaddset(&stop, signal);
  ::sigemptyset(&go_on);
  ::sigaddset(&go_on, SIGCONT);
  // SIGCONT continues the process even if it is blocked, and waits then to be taken.
  ::sigprocmask(SIG_BLOCK, &go_on, &before);
  ::raise(signal);
  ::sigprocmask(SIG_UNBLOCK, &stop, nullptr);
  const timespec at_once{};
  const bool has_stopped = ::sigtimedwait(&go_on, nullptr, &at_once) == SIGCONT;
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  return has_stopped;
}

}  // namespace

JobControl::JobControl() : modes_(modes_of_terminal()) {}

JobControl::~JobControl() { set_modes(modes_); }

int JobControl::stdin_of(const WorkerPlan& worker) {
  if (!worker.reads_stdin) return -1;
  // base/host/process_state opens a closed standard input for writing.
  const int flags = ::fcntl(STDIN_FILENO, F_GETFL);
  if (flags < 0 || (flags & O_ACCMODE) == O_WRONLY || is_in_background()) return -1;
  reader_ = worker.rank;
  return STDIN_FILENO;
}

JobControl::Clock::duration JobControl::stop(std::span<const Worker> workers, Terminal& terminal,
                                             SignalQueue& signals) const {
  const Clock::time_point begin = Clock::now();
  const std::optional<termios> modes = modes_of_terminal();
  const bool has_reader = std::any_of(workers.begin(), workers.end(), [this](const Worker& worker) {
    return !worker.outcome && worker.plan->rank == reader_;
  });
  bool has_stopped = stop_by(SIGTSTP);
  // A shell continues a stopped job that it ends.
  while (has_reader && has_stopped && is_in_background() && !signals.has_to_end()) {
    log::warn(fmt::format("rank {} reads the terminal and stays stopped; `fg` continues it", *reader_));
    terminal.pump();
    has_stopped = stop_by(SIGTTIN);
  }
  set_modes(modes);
  return Clock::now() - begin;
}

}  // namespace accel::launch
