#pragma once

#include <cstdint>

#include "core/config/config.hpp"

namespace accel {

/// The factor on the base learning rate in optimizer step `step`, counted from 0, with the names and formulas
/// of transformers' get_scheduler. `total_steps` is where the decay ends.
double lr_factor(const config::SchedulerConfig& config, std::int64_t step, std::int64_t total_steps);

}  // namespace accel
