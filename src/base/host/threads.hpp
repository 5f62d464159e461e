#pragma once

#include <functional>
#include <thread>

namespace accel {

/// How many threads to use if nobody says: one per usable CPU, at least two and at most four. More of them
/// only wait for memory.
[[nodiscard]] unsigned default_threads();

/// Runs `work` on `threads` threads, this one included, and waits for all. Then it throws the first exception
/// that one of them threw.
void run_on_threads(unsigned threads, const std::function<void()>& work);

/// Runs both at once, `first` on this thread, and waits for both. If both throw, it throws the exception of
/// `first`.
void run_both(const std::function<void()>& first, const std::function<void()>& second);

/// A thread that gets no signal of this process: they are for those who wait for them.
[[nodiscard]] std::thread thread_without_signals(std::function<void()> work);

}  // namespace accel
