#include "base/stop_request.hpp"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <thread>

namespace accel {
namespace {

constexpr int kStopSignals[] = {SIGTERM, SIGUSR1, SIGUSR2};
constexpr std::chrono::seconds kOneRequest{1};

/// The first signal, or 0.
std::atomic<int> requested{0};
std::atomic<bool> is_released{false};

[[noreturn]] void end_by(int signal) {
  ::signal(signal, SIG_DFL);
  sigset_t one;
  ::sigemptyset(&one);
  ::sigaddset(&one, signal);
  ::pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
  ::raise(signal);
  std::abort();  // Only a tracer can have taken the signal away.
}

void wait_for_signals() {
  using Clock = std::chrono::steady_clock;
  const sigset_t signals = stop_signals();
  std::optional<Clock::time_point> first;
  while (true) {
    siginfo_t info{};
    const int signal = ::sigwaitinfo(&signals, &info);
    if (signal < 0) continue;  // EINTR, as after SIGCONT.
    const bool at_once = info.si_code == SI_QUEUE && info.si_value.sival_int == kEndNow;
    if (at_once || is_released || (first && Clock::now() - *first >= kOneRequest)) end_by(signal);
    if (!first) first = Clock::now();
    int none = 0;
    requested.compare_exchange_strong(none, signal);
    if (is_released) end_by(signal);  // It was released meanwhile.
  }
}

}  // namespace

sigset_t stop_signals() {
  sigset_t signals;
  ::sigemptyset(&signals);
  for (const int signal : kStopSignals) ::sigaddset(&signals, signal);
  return signals;
}

void catch_stop_signals() {
  const sigset_t signals = stop_signals();
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::thread(wait_for_signals).detach();
}

void release_stop_signals() {
  is_released = true;
  if (const int signal = requested) end_by(signal);
}

bool stop_requested() { return requested.load(std::memory_order_relaxed) != 0; }

}  // namespace accel
