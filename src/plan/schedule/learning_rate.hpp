#pragma once

#include <cstdint>

#include "core/config/config.hpp"

namespace accel {

/// The factor on the learning rates in optimizer step `step`, counted from 0, with the names and formulas of
/// transformers' get_scheduler. `total_steps` is where the decay ends, and `base_lr` the learning rate of the
/// optimizer, to which absolute rates are relative. Throws Error (kUsage) for a type that does not exist, or
/// whose factor depends on more than the step (plateau.hpp).
double lr_factor(const config::SchedulerConfig& config, std::int64_t step, std::int64_t total_steps,
                 double base_lr);

}  // namespace accel
