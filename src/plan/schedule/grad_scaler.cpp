#include "plan/schedule/grad_scaler.hpp"

#include <fmt/format.h>

#include <cmath>

#include "base/error.hpp"

namespace accel {

GradScaler::GradScaler(const config::GradScalerConfig& config)
    : config_(config), scale_(static_cast<float>(config.init_scale)) {}

double GradScaler::inverse() const { return static_cast<float>(1 / static_cast<double>(scale_)); }

void GradScaler::update(bool overflowed, std::int64_t step) {
  if (overflowed) {
    scale_ = static_cast<float>(scale_ * config_.backoff_factor);
    growth_tracker_ = 0;
    if (scale_ >= config::kLeastScale) return;
    throw Error(
        ErrorKind::kDiverged,
        fmt::format("step {}: gradients are infinite or NaN in float16, although the loss is multiplied "
                    "by only {:.3g}",
                    step, scale_ / config_.backoff_factor))
        .hint(
            "try mixed_precision: bf16, or a smaller learning rate; a smaller scale of the loss would not "
            "help");
  }
  if (++growth_tracker_ < config_.growth_interval) return;
  growth_tracker_ = 0;
  const auto grown = static_cast<float>(scale_ * config_.growth_factor);
  if (std::isfinite(grown)) scale_ = grown;
}

}  // namespace accel
