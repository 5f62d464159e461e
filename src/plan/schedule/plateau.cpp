#include "plan/schedule/plateau.hpp"

#include <algorithm>
#include <limits>

namespace accel {
namespace {

/// A smaller change of the learning rate is not made.
constexpr double kEps = 1e-8;
/// How much greater the product of rate and factor may be than the bound from which the factor was made.
constexpr double kRounding = 1e-12;

config::PlateauConfig complete(config::PlateauConfig config, bool is_greedy) {
  if (!config.factor) config.factor = is_greedy ? 0.95 : 0.1;
  if (!config.threshold) config.threshold = is_greedy ? 1e-6 : 1e-4;
  if (config.threshold_mode.empty()) config.threshold_mode = is_greedy ? "abs" : "rel";
  if (!config.min_lr) config.min_lr = is_greedy ? 1e-3 : 0;
  return config;
}

ckpt::PlateauState initial_state(const config::PlateauConfig& config, bool is_greedy) {
  ckpt::PlateauState state;
  if (is_greedy) state.greedy = ckpt::GreedyState{.reset_start = config.reset_start};
  return state;
}

}  // namespace

Plateau::Plateau(const config::SchedulerConfig& config, double base_lr)
    : is_greedy_(config.type == "greedy"),
      config_(complete(config.plateau, is_greedy_)),
      base_lr_(base_lr),
      state_(initial_state(config_, is_greedy_)) {}

void Plateau::restore(const State& state) {
  const std::optional<ckpt::GreedyState> initial = initial_state(config_, is_greedy_).greedy;
  state_ = state;
  if (state.greedy.has_value() != is_greedy_) state_.greedy = initial;
}

void Plateau::forget_losses() {
  state_.best.reset();
  state_.num_bad_epochs = 0;
  if (state_.greedy) state_.greedy->num_good_epochs = 0;
}

bool Plateau::is_better(double loss) const {
  const double best = state_.best.value_or(std::numeric_limits<double>::infinity());
  return loss <
         (config_.threshold_mode == "abs" ? best - *config_.threshold : best * (1 - *config_.threshold));
}

void Plateau::update(double loss) {
  if (is_greedy_) return update_greedy(loss);
  if (is_better(loss)) {
    state_.best = loss;
    state_.num_bad_epochs = 0;
  } else {
    ++state_.num_bad_epochs;
  }
  if (state_.cooldown_counter > 0) {
    --state_.cooldown_counter;
    state_.num_bad_epochs = 0;
  }
  if (state_.num_bad_epochs <= config_.patience) return;
  reduce();
  state_.cooldown_counter = config_.cooldown;
  state_.num_bad_epochs = 0;
}

void Plateau::update_greedy(double loss) {
  ckpt::GreedyState& greedy = *state_.greedy;
  std::int64_t* const pause = state_.cooldown_counter > 0 ? &state_.cooldown_counter
                              : greedy.warmup_counter > 0 ? &greedy.warmup_counter
                                                          : nullptr;
  if (pause != nullptr) {
    --*pause;
    state_.num_bad_epochs = 0;
    greedy.num_good_epochs = 0;
    return;
  }
  if (is_better(loss)) {
    state_.best = loss;
    state_.num_bad_epochs = 0;
    ++greedy.num_good_epochs;
  } else {
    ++state_.num_bad_epochs;
    greedy.num_good_epochs = 0;
  }
  if (greedy.num_good_epochs > config_.patience) {
    increase();
    greedy.warmup_counter = config_.warmup;
    greedy.reset_start = config_.reset_start;
    greedy.num_good_epochs = 0;
  } else if (state_.num_bad_epochs > config_.patience) {
    reduce();
    const bool is_least = base_lr_ * state_.scale <= *config_.min_lr * (1 + kRounding);
    if (is_least && --greedy.reset_start <= 0) state_ = initial_state(config_, /*is_greedy=*/true);
    state_.cooldown_counter = config_.cooldown;
    state_.num_bad_epochs = 0;
  }
}

void Plateau::reduce() {
  const double lr = base_lr_ * state_.scale;
  const double next = std::max(lr * *config_.factor, *config_.min_lr);
  if (lr - next > kEps) state_.scale = next / base_lr_;
}

void Plateau::increase() {
  const double lr = base_lr_ * state_.scale;
  const double next = std::min(lr / *config_.factor, config_.max_lr);
  if (next - lr > kEps) state_.scale = next / base_lr_;
}

}  // namespace accel
