#include "core/launch/agent/job_control.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <csignal>

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

}  // namespace

JobControl::JobControl() : modes_(modes_of_terminal()) {}

JobControl::~JobControl() { set_modes(modes_); }

int JobControl::readable_stdin() {
  // base/host/process_state opens a closed standard input for writing.
  const int flags = ::fcntl(STDIN_FILENO, F_GETFL);
  if (flags < 0 || (flags & O_ACCMODE) == O_WRONLY) return -1;
  const pid_t foreground = foreground_group();
  return foreground < 0 || foreground == ::getpgrp() ? STDIN_FILENO : -1;
}

JobControl::Clock::duration JobControl::stop() const {
  const Clock::time_point begin = Clock::now();
  const std::optional<termios> modes = modes_of_terminal();
  // The kernel ignores SIGTSTP in an orphaned process group, which nobody would continue.
  sigset_t stop;
  sigset_t before;
  ::sigemptyset(&stop);
  ::sigaddset(&stop, SIGTSTP);
  ::raise(SIGTSTP);
  ::sigprocmask(SIG_UNBLOCK, &stop, &before);
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  set_modes(modes);
  return Clock::now() - begin;
}

}  // namespace accel::launch
