#pragma once

namespace accel {

/// The value that sigqueue(2) gives to a SIGTERM that must end a process at once, although it catches stop
/// signals: the launcher sends it to the other ranks when one has failed.
inline constexpr int kEndNow = 0x656e64;

/// From here on the first SIGTERM, SIGUSR1 or SIGUSR2 does not end the process, but makes stop_requested()
/// true. A later one ends it. One that comes within a second of the first counts as the same: Slurm signals
/// the worker as well as the launcher, which passes the signal on.
void catch_stop_signals();

/// Undoes catch_stop_signals(). If a signal was caught, SIGTERM ends the process now.
void release_stop_signals();

[[nodiscard]] bool stop_requested();

}  // namespace accel
