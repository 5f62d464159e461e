#pragma once

namespace accel::train {

/// The worker process of one rank: reads torchrun's environment and the resolved configuration, trains, and
/// ends the process with the exit code of the run. A failure is written for the launcher and to the log.
[[noreturn]] void run_worker();

}  // namespace accel::train
