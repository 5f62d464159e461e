#pragma once

#include <csignal>

namespace accel {

/// Repairs the inherited state that every program of this project relies on. Call first in main, before
/// anything opens a file or starts a thread.
///
/// - A closed standard descriptor is opened on /dev/null in the wrong direction. So no other file gets its
///   number, and reading or writing it fails with EBADF as on a closed one.
/// - Signals are as reset_signals(mask) leaves them, and SIGXFSZ is ignored, so that a write beyond
///   `ulimit -f` fails with EFBIG.
void reset_process_state(const sigset_t* mask = nullptr);

/// Sets the signal mask to `mask`, or to none, and gives default dispositions to those that are ignored.
/// SIGHUP, SIGINT and SIGQUIT stay ignored: nohup and the background jobs of a shell ask for that.
/// Async-signal-safe, so a child may call it between fork and exec.
void reset_signals(const sigset_t* mask = nullptr);

}  // namespace accel
