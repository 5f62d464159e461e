#include "core/launch/agent/signals.hpp"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>

#include <cerrno>

#include "base/error.hpp"
#include "base/signal_name.hpp"

namespace accel::launch {

std::string text_of_request(int signal, bool is_ours, bool saves) {
  if (saves)
    return fmt::format("SIG{}: the run saves a checkpoint and ends; a second one kills it",
                       signal_name(signal));
  return fmt::format("SIG{}: passed on to the workers{}; a second one kills them", signal_name(signal),
                     passed_on(signal, is_ours) == signal ? "" : " as SIGTERM");
}

SignalQueue::SignalQueue(LateSignals& late) : late_(late) {
  sigset_t wanted;
  ::sigemptyset(&wanted);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGTSTP, SIGCHLD}) {
    struct sigaction action {};
    ::sigaction(signal, nullptr, &action);
    const bool may_stay_ignored = signal == SIGINT || signal == SIGHUP;
    if (!may_stay_ignored || action.sa_handler != SIG_IGN) ::sigaddset(&wanted, signal);
  }
  ::sigprocmask(SIG_BLOCK, &wanted, &previous_);
  fd_ = Fd(::signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd_) {
    const int reason = errno;
    ::sigprocmask(SIG_SETMASK, &previous_, nullptr);
    throw system_error("create", "a signal descriptor", reason);
  }
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &ignore, &previous_pipe_);
  // If SIGCHLD were ignored, the exit statuses of children would be lost.
  struct sigaction child {};
  child.sa_handler = SIG_DFL;
  child.sa_flags = SA_NOCLDSTOP;
  ::sigaction(SIGCHLD, &child, &previous_child_);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
}

SignalQueue::~SignalQueue() {
  // What is still queued must not be delivered when the mask is restored.
  while (const std::optional<Arrival> arrival = next()) {
    late_.save |= arrival->signal == SIGUSR1 || arrival->signal == SIGUSR2;
    if (arrival->signal == SIGINT || arrival->signal == SIGTERM || arrival->signal == SIGHUP)
      late_.interrupt = arrival->signal;
  }
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
  ::sigaction(SIGCHLD, &previous_child_, nullptr);
  ::sigaction(SIGPIPE, &previous_pipe_, nullptr);
  ::sigprocmask(SIG_SETMASK, &previous_, nullptr);
}

std::optional<Arrival> SignalQueue::next() {
  signalfd_siginfo info{};
  if (::read(fd_.get(), &info, sizeof info) != sizeof info) return std::nullopt;
  return Arrival{static_cast<int>(info.ssi_signo), static_cast<pid_t>(info.ssi_pid)};
}

}  // namespace accel::launch
