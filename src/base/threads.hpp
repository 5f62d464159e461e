#pragma once

#include <functional>

namespace accel {

/// Threads to use when nobody says how many: one a usable CPU, two at least and four at most. More than that
/// only waits for memory.
[[nodiscard]] unsigned default_threads();

/// Runs `work` on `threads` threads, this one included, and waits for all. The first exception that one
/// throws is thrown here, when all are done.
void run_on_threads(unsigned threads, const std::function<void()>& work);

/// Runs both at once, `first` on this thread, and waits for both. If both throw, it is the first's that is
/// thrown here.
void run_both(const std::function<void()>& first, const std::function<void()>& second);

}  // namespace accel
