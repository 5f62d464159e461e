#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace accel {

/// Statements that raise a ValueError, with the sizes that are possible, unless the inputs of `program` have
/// sizes for which it was exported.
[[nodiscard]] std::vector<std::string> input_checks(const nlohmann::json& program);

}  // namespace accel
