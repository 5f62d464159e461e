#include "base/stop_request.hpp"

#include <atomic>
#include <csignal>
#include <cstdint>
#include <ctime>

namespace accel {
namespace {

constexpr int kStopSignals[] = {SIGTERM, SIGUSR1, SIGUSR2};
constexpr std::int64_t kOneRequestNs = 1'000'000'000;

/// When the first signal came, on the monotonic clock; 0 before. It alone says whether one came, so that two
/// threads that get signals at once agree on which is the first.
std::atomic<std::int64_t> stopped_at_ns{0};

static_assert(std::atomic<std::int64_t>::is_always_lock_free, "a signal handler may touch nothing else");

std::int64_t now_ns() {
  struct timespec now {};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void end_by(int signal) {
  ::signal(signal, SIG_DFL);
  sigset_t one;
  ::sigemptyset(&one);
  ::sigaddset(&one, signal);
  ::sigprocmask(SIG_UNBLOCK, &one, nullptr);
  ::raise(signal);
}

void on_stop_signal(int signal, siginfo_t* info, void*) {
  const bool at_once = info->si_code == SI_QUEUE && info->si_value.sival_int == kEndNow;
  if (at_once) return end_by(signal);
  std::int64_t first = 0;
  const std::int64_t now = now_ns();
  if (!stopped_at_ns.compare_exchange_strong(first, now) && now - first >= kOneRequestNs) end_by(signal);
}

}  // namespace

void catch_stop_signals() {
  struct sigaction action {};
  action.sa_sigaction = on_stop_signal;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  for (const int signal : kStopSignals) ::sigaction(signal, &action, nullptr);
}

void release_stop_signals() {
  for (const int signal : kStopSignals) ::signal(signal, SIG_DFL);
  if (stop_requested()) ::raise(SIGTERM);
}

bool stop_requested() { return stopped_at_ns.load(std::memory_order_relaxed) != 0; }

}  // namespace accel
