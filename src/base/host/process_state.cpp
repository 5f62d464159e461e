#include "base/host/process_state.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <initializer_list>

namespace accel {
namespace {

void open_standard_descriptors() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    // open() takes the lowest free number, which is this one. Without /dev the root directory takes its
    // place: it cannot be written either.
    if (::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0) [[maybe_unused]]
      const int root = ::open("/", O_RDONLY);
  }
}

bool may_stay_ignored(int signal) { return signal == SIGHUP || signal == SIGINT || signal == SIGQUIT; }

}  // namespace

void reset_process_state(const sigset_t* mask) {
  open_standard_descriptors();
  reset_signals(mask);
  ::signal(SIGXFSZ, SIG_IGN);
}

void reset_signals(const sigset_t* mask) {
  for (int signal = 1; signal < NSIG; ++signal) {
    struct sigaction action {};
    if (may_stay_ignored(signal) || ::sigaction(signal, nullptr, &action) != 0) continue;
    if (action.sa_handler == SIG_IGN) ::signal(signal, SIG_DFL);
  }
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, mask != nullptr ? mask : &none, nullptr);
}

}  // namespace accel
