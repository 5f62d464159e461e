#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace accel::ckpt {

/// One step into a nested state dict: a key of a dict, or an index of a list.
using PathKey = std::variant<std::string, std::int64_t>;

/// Where a leaf is in a nested state dict, as DCP's planner_data records it: {"model", "h.0.weight"} or
/// {"optimizer", "param_groups", 0, "lr"}.
using StatePath = std::vector<PathKey>;

/// The flat name of a path: its keys joined with dots. A key may hold dots itself, so the
/// path cannot be found by splitting the name; planner_data records it.
[[nodiscard]] std::string fqn_of(const StatePath& path);

}  // namespace accel::ckpt
