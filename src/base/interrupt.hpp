#pragma once

#include <atomic>
#include <csignal>

namespace accel {

/// While it lives, the first SIGINT, SIGTERM, SIGHUP, SIGUSR1 or SIGUSR2 does not end the process but makes
/// check_interrupted() throw, so that a command can clean up. The second ends it at once. A signal that was
/// ignored stays ignored (nohup). Guards are not nested.
class InterruptGuard {
 public:
  InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
  ~InterruptGuard();

 private:
  struct sigaction previous_[5]{};
};

namespace detail {
inline std::atomic<int> interrupting_signal{0};
[[noreturn]] void throw_interrupted();
}  // namespace detail

/// Throws error_of_signal() if a signal has come. Every
/// read, write and sync of a File calls it. Long loops without these should call it some ten times a second.
inline void check_interrupted() {
  if (detail::interrupting_signal.load(std::memory_order_relaxed) != 0) [[unlikely]]
    detail::throw_interrupted();
}

}  // namespace accel
