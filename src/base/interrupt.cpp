#include "base/interrupt.hpp"

#include <cstddef>
#include <iterator>

#include "base/error.hpp"

namespace accel {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};

static_assert(std::atomic<int>::is_always_lock_free, "a signal handler may touch nothing else");

void on_signal(int signal) {
  if (detail::interrupting_signal.exchange(signal, std::memory_order_relaxed) == 0) return;
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

}  // namespace

InterruptGuard::InterruptGuard() {
  detail::interrupting_signal = 0;
  struct sigaction action {};
  action.sa_handler = on_signal;  // SA_RESTART is not set, so that a call that waits ends with EINTR.
  for (std::size_t i = 0; i < std::size(kSignals); ++i) {
    ::sigaction(kSignals[i], nullptr, &previous_[i]);
    if (previous_[i].sa_handler != SIG_IGN) ::sigaction(kSignals[i], &action, nullptr);
  }
}

InterruptGuard::~InterruptGuard() {
  for (std::size_t i = 0; i < std::size(kSignals); ++i) ::sigaction(kSignals[i], &previous_[i], nullptr);
  detail::interrupting_signal = 0;
}

namespace detail {

void throw_interrupted() { throw error_of_signal(interrupting_signal); }

}  // namespace detail
}  // namespace accel
