#pragma once

#include <cstdint>

#include "core/config/config.hpp"
#include "plan/layout/flat_layout.hpp"

namespace accel {

/// The cost of a communication hook for the gradient of one buffer, which is float32, once PowerSGD has
/// begun.
struct CommHookPlan {
  std::uint64_t sent_bytes = 0;    ///< Bytes all-reduced in a step.
  std::uint64_t state_bytes = 0;   ///< Bytes kept from one step to the next.
  std::uint64_t copied_bytes = 0;  ///< Bytes of copies while the gradient is being reduced.
};

/// Plans what train/fsdp/buffers/comm_hook.cpp does. The configuration must have a hook.
CommHookPlan plan_comm_hook(const FlatLayout& layout, const config::DdpConfig& config);

}  // namespace accel
