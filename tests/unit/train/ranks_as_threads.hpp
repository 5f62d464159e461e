#pragma once

#include <cstdlib>

namespace accel::train::testing {

/// Included where ranks are threads of one process. c10d has one flight recorder a process, and Gloo's groups
/// write into it without a lock between them: two at once crash now and then. Without a buffer it is off.
inline const bool kFlightRecorderIsOff = ::setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/1) == 0;

}  // namespace accel::train::testing
