#include "plan/schedule/early_stopping.hpp"

#include <fmt/format.h>

#include <cmath>

namespace accel {

void EarlyStopping::update(double value) {
  const bool is_first = !state_;
  if (is_first) state_ = State{metric_.key(), std::nullopt, 0};
  const double best = state_->best.value_or(metric_.worst());
  const bool is_better = metric_.is_better(value, best);
  if (is_first || (is_better && std::abs(value - best) > config_.threshold)) {
    state_->patience_counter = 0;
  } else {
    ++state_->patience_counter;
  }
  if (is_better) state_->best = value;
}

bool EarlyStopping::is_reached() const { return state_ && state_->patience_counter >= config_.patience; }

std::string EarlyStopping::why() const {
  const std::string best = state_->best ? fmt::format("{:.6g}", *state_->best) : "NaN";
  const std::string margin =
      config_.threshold > 0 ? fmt::format(" by more than {:g}", config_.threshold) : "";
  return fmt::format("{} was not better than {}{} in the last {} {}", metric_.key(), best, margin,
                     state_->patience_counter, state_->patience_counter == 1 ? "evaluation" : "evaluations");
}

}  // namespace accel
