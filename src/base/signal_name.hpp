#pragma once

namespace accel {

/// Returns the name of a signal without "SIG", or nullptr if the number has no name. It may be called in a
/// signal handler. sigabbrev_np(3) returns the same, but the C library has it only since glibc 2.32.
[[nodiscard]] const char* signal_name(int signal);

}  // namespace accel
