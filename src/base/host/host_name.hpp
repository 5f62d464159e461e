#pragma once

#include <string>

namespace accel {

/// The name of this machine as gethostname(2) gives it; "localhost" if it has none.
std::string host_name();

/// A number that this kernel has had since it booted and that no other kernel has; empty if /proc does not
/// show it. Containers of one machine share it.
std::string boot_id();

}  // namespace accel
