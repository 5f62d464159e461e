#include "plan/schedule/learning_rate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <string_view>

#include "base/error.hpp"

namespace accel {
namespace {

using std::numbers::pi;

/// Where a schedule is evaluated. The numbers of steps are floating, as in transformers.
struct Moment {
  double step = 0;
  double warmup = 0;
  double total = 0;
  double base_lr = 0;

  [[nodiscard]] double warmed_up() const { return step / std::max(1.0, warmup); }
  /// How far the decay has come, from 0 at the end of the warm-up to 1 at `total`.
  [[nodiscard]] double progress() const { return (step - warmup) / std::max(1.0, total - warmup); }
};

using Config = config::SchedulerConfig;

/// `factor` between the floor and 1.
double above_floor(const Config& config, double factor) {
  return factor * (1 - config.min_lr_ratio) + config.min_lr_ratio;
}

double constant(const Config& /*config*/, const Moment& /*at*/) { return 1; }

double linear(const Config& /*config*/, const Moment& at) {
  return std::max(0.0, (at.total - at.step) / std::max(1.0, at.total - at.warmup));
}

/// With a floor it is what transformers calls cosine_with_min_lr.
double cosine(const Config& config, const Moment& at) {
  const double factor = 0.5 * (1 + std::cos(pi * config.num_cycles.value_or(0.5) * 2 * at.progress()));
  return std::max(0.0, above_floor(config, factor));
}

double cosine_with_restarts(const Config& config, const Moment& at) {
  if (at.progress() >= 1) return 0;
  const double cycle = std::fmod(config.num_cycles.value_or(1) * at.progress(), 1.0);
  return std::max(0.0, 0.5 * (1 + std::cos(pi * cycle)));
}

double polynomial(const Config& config, const Moment& at) {
  if (at.step > at.total) return config.lr_end / at.base_lr;
  const double left = 1 - (at.step - at.warmup) / (at.total - at.warmup);
  return ((at.base_lr - config.lr_end) * std::pow(left, config.power) + config.lr_end) / at.base_lr;
}

double inverse_sqrt(const Config& config, const Moment& at) {
  constexpr double kTimescale = 10'000;
  const double timescale = config.timescale > 0 ? static_cast<double>(config.timescale)
                           : at.warmup > 0      ? at.warmup
                                                : kTimescale;
  return 1 / std::sqrt((at.step + timescale - at.warmup) / timescale);
}

double cosine_warmup_with_min_lr(const Config& config, const Moment& at) {
  if (at.step < at.warmup) {
    if (!config.warmup_lr_ratio) return (at.step + 1) / std::max(1.0, at.warmup);
    return *config.warmup_lr_ratio + (1 - *config.warmup_lr_ratio) * at.step / std::max(1.0, at.warmup - 1);
  }
  const double progress = (at.step - at.warmup + 1) / std::max(1.0, at.total - at.warmup);
  const double factor = 0.5 * (1 + std::cos(pi * config.num_cycles.value_or(0.5) * 2 * progress));
  return std::max(0.0, above_floor(config, factor));
}

double warmup_stable_decay(const Config& config, const Moment& at) {
  if (at.step < at.warmup) {
    const double done = at.warmed_up();
    const double factor = config.warmup_type == "cosine"   ? 0.5 * (1 - std::cos(pi * done))
                          : config.warmup_type == "1-sqrt" ? 1 - std::sqrt(1 - done)
                                                           : done;
    return std::max(0.0, above_floor(config, factor));
  }
  const auto decay = static_cast<double>(config.decay_steps);
  const double stable_end = at.total - decay;
  if (at.step < stable_end) return 1;
  if (at.step >= at.total) return config.min_lr_ratio;
  const double progress = (at.step - stable_end) / std::max(1.0, decay);
  const double waves = config.num_cycles.value_or(0.5) * 2;
  const double factor = config.decay_type == "linear"   ? 1 - progress
                        : config.decay_type == "1-sqrt" ? 1 - std::sqrt(progress)
                                                        : 0.5 * (1 + std::cos(pi * waves * progress));
  return std::max(0.0, above_floor(config, factor));
}

/// A schedule that follows from the step.
struct Row {
  std::string_view type;
  bool warms_up = false;  ///< The factor rises from 0 to 1 in the warm-up; otherwise the function has it.
  double (*factor)(const Config& config, const Moment& at);
};

constexpr std::array kRows = {
    Row{"constant", false, constant},
    Row{"constant_with_warmup", true, constant},
    Row{"linear", true, linear},
    Row{"cosine", true, cosine},
    Row{"cosine_with_restarts", true, cosine_with_restarts},
    Row{"polynomial", true, polynomial},
    Row{"inverse_sqrt", true, inverse_sqrt},
    Row{"cosine_with_min_lr", true, cosine},
    Row{"cosine_warmup_with_min_lr", false, cosine_warmup_with_min_lr},
    Row{"warmup_stable_decay", false, warmup_stable_decay},
};

}  // namespace

double lr_factor(const config::SchedulerConfig& config, std::int64_t step, std::int64_t total_steps,
                 double base_lr) {
  const auto* const row =
      std::find_if(kRows.begin(), kRows.end(), [&](const Row& each) { return each.type == config.type; });
  if (row == kRows.end())
    throw Error(ErrorKind::kUsage, fmt::format("unknown learning-rate schedule '{}'", config.type));
  const Moment at{static_cast<double>(step), static_cast<double>(config.warmup_steps),
                  static_cast<double>(total_steps), base_lr};
  return row->warms_up && at.step < at.warmup ? at.warmed_up() : row->factor(config, at);
}

}  // namespace accel
