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

SignalQueue::SignalQueue(SignalSource& source) : source_(source) {
  sigset_t wanted;
  ::sigemptyset(&wanted);
  for (const int signal : {SIGTSTP, SIGCHLD}) ::sigaddset(&wanted, signal);
  ::sigprocmask(SIG_BLOCK, &wanted, &previous_);
  fd_ = Fd(::signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
  try {
    if (!fd_) throw system_error("create", "a signal descriptor", errno);
    source_.hold();
  } catch (const Error&) {
    ::sigprocmask(SIG_SETMASK, &previous_, nullptr);
    throw;
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
  source_.close();
  // What is still queued must not be delivered when the mask is restored.
  signalfd_siginfo info{};
  while (::read(fd_.get(), &info, sizeof info) == sizeof info) {
  }
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
  ::sigaction(SIGCHLD, &previous_child_, nullptr);
  ::sigaction(SIGPIPE, &previous_pipe_, nullptr);
  ::sigprocmask(SIG_SETMASK, &previous_, nullptr);
}

void SignalQueue::add_polls(std::vector<pollfd>& polls) const {
  polls.push_back({fd_.get(), POLLIN, 0});
  polls.push_back({source_.fd(), POLLIN, 0});
}

std::optional<Arrival> SignalQueue::next() {
  if (const auto signal = source_.take()) return Arrival{*signal, 0};
  signalfd_siginfo info{};
  if (::read(fd_.get(), &info, sizeof info) != sizeof info) return std::nullopt;
  return Arrival{static_cast<int>(info.ssi_signo), static_cast<pid_t>(info.ssi_pid)};
}

}  // namespace accel::launch
