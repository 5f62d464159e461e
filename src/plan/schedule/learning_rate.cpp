#include "plan/schedule/learning_rate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.hpp"

namespace accel {
namespace {

/// How far the decay has come, from 0 at the end of the warm-up to 1 at `total`.
double progress_of(std::int64_t step, std::int64_t warmup, std::int64_t total) {
  return static_cast<double>(step - warmup) / static_cast<double>(std::max<std::int64_t>(1, total - warmup));
}

}  // namespace

double lr_factor(const config::SchedulerConfig& config, std::int64_t step, std::int64_t total_steps) {
  if (config.type == "constant") return 1;
  if (step < config.warmup_steps) {
    return static_cast<double>(step) / static_cast<double>(std::max<std::int64_t>(1, config.warmup_steps));
  }
  if (config.type == "constant_with_warmup") return 1;
  const double progress = progress_of(step, config.warmup_steps, total_steps);
  if (config.type == "linear") return std::max(0.0, 1 - progress);
  if (config.type == "cosine") {
    // get_cosine_with_min_lr_schedule_with_warmup: the plain cosine for min_lr_ratio 0.
    const double factor = 0.5 * (1 + std::cos(std::numbers::pi * progress));
    return std::max(0.0, factor * (1 - config.min_lr_ratio) + config.min_lr_ratio);
  }
  throw Error(ErrorKind::kUsage, fmt::format("unknown learning-rate schedule '{}'", config.type));
}

}  // namespace accel
