#pragma once

#include <string>

namespace accel {

/// The name of this machine as gethostname(2) gives it; "localhost" if it has none.
std::string host_name();

}  // namespace accel
