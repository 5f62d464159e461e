#pragma once

#include <cstdint>

#include "core/config/config.hpp"
#include "plan/flat_layout.hpp"

namespace accel {

/// What a communication hook takes for the gradient of one buffer, which is float32, once PowerSGD has begun.
struct CommHookPlan {
  std::uint64_t sent_bytes = 0;    ///< All-reduced in a step.
  std::uint64_t state_bytes = 0;   ///< From one step to the next.
  std::uint64_t copied_bytes = 0;  ///< While the gradient is under way, beside it.
};

/// As comm_hook.cpp does it. The configuration has a hook.
CommHookPlan plan_comm_hook(const FlatLayout& layout, const core::DdpConfig& config);

}  // namespace accel
