#pragma once

#include <string>
#include <vector>

namespace accel {

/// The files that a path or a glob of training data means, in sorted order. No match is an Error of kind
/// kUsage.
[[nodiscard]] std::vector<std::string> data_files(const std::string& pattern);

}  // namespace accel
