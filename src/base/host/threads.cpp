#include "base/host/threads.hpp"

#include <algorithm>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

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

}  // namespace accel
