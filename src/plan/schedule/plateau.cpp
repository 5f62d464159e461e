#include "plan/schedule/plateau.hpp"

#include <algorithm>
#include <limits>

namespace accel {
namespace {

/// A fall of the learning rate by less is not made.
constexpr double kEps = 1e-8;

}  // namespace

void Plateau::update(double loss) {
  const double best = state_.best.value_or(std::numeric_limits<double>::infinity());
  const double wanted =
      config_.threshold_mode == "abs" ? best - config_.threshold : best * (1 - config_.threshold);
  if (loss < wanted) {
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
  const double lr = base_lr_ * state_.scale;
  const double next = std::max(lr * config_.factor, config_.min_lr);
  if (lr - next > kEps) state_.scale = next / base_lr_;
  state_.cooldown_counter = config_.cooldown;
  state_.num_bad_epochs = 0;
}

}  // namespace accel
