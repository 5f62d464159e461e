#include "base/host/threads.hpp"

#include <algorithm>
#include <csignal>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/host/cpus.hpp"

namespace accel {

unsigned default_threads() { return std::clamp(usable_cpus(), 2U, 4U); }

void run_on_threads(unsigned threads, const std::function<void()>& work) {
  std::mutex mutex;
  std::exception_ptr failure;
  const auto guarded = [&] {
    try {
      work();
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> others;
    for (unsigned i = 1; i < threads; ++i) others.emplace_back(guarded);
    guarded();
  }
  if (failure) std::rethrow_exception(failure);
}

void run_both(const std::function<void()>& first, const std::function<void()>& second) {
  std::exception_ptr failure;
  const auto guarded = [&] {
    try {
      second();
    } catch (...) {
      failure = std::current_exception();
    }
  };
  {
    const std::jthread other(guarded);
    first();  // If it throws, the jthread waits for the other.
  }
  if (failure) std::rethrow_exception(failure);
}

std::thread thread_without_signals(std::function<void()> work) {
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  // Those of the thread's own faults would end the process without a report if they were blocked.
  for (const int fault : {SIGSEGV, SIGBUS, SIGILL, SIGFPE}) ::sigdelset(&all, fault);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread;
  try {
    thread = std::thread(std::move(work));
  } catch (const std::system_error& error) {
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw system_error("start", "a thread", error.code().value());
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace accel
