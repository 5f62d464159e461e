#pragma once

#include <csignal>

namespace accel {

/// The value that sigqueue(2) gives to a SIGTERM that must end a process at once, although it waits for stop
/// signals: the launcher sends it to the other ranks when one has failed.
inline constexpr int kEndNow = 0x656e64;

/// SIGTERM, SIGUSR1 and SIGUSR2.
[[nodiscard]] sigset_t stop_signals();

/// From here on the first stop signal does not end the process, but makes stop_requested() true. A later one
/// ends it. One that comes within a second of the first counts as the same: Slurm signals the worker as well
/// as the launcher, which passes the signal on.
///
/// The signals are blocked in the calling thread, and so in all threads that it starts, and one more thread
/// waits for them. There is no handler: it would run on the stack of a thread that computes, and oneDNN's
/// products keep values below the end of their stack, where the kernel puts what a handler needs
/// (docs/design/028). Call it before there are other threads. Throws std::system_error if there can be no
/// other thread.
void catch_stop_signals();

/// From here on a stop signal ends the process. If one has come, it ends it now.
void release_stop_signals();

[[nodiscard]] bool stop_requested();

}  // namespace accel
