#pragma once

#include "ckpt/store/run_state.hpp"
#include "core/config/config.hpp"

namespace accel {

/// The factor on the learning rates that falls when the held-out loss has stopped falling, as in
/// torch.optim.lr_scheduler.ReduceLROnPlateau with the mode `min`.
///
/// `min_lr` bounds the learning rate of the optimizer. Groups with another rate keep their ratio to it, where
/// torch bounds each by itself.
class Plateau {
 public:
  using State = ckpt::PlateauState;

  /// `base_lr` is the learning rate of the optimizer.
  Plateau(const config::PlateauConfig& config, double base_lr) : config_(config), base_lr_(base_lr) {}

  /// The factor for the next step.
  [[nodiscard]] double scale() const { return state_.scale; }
  [[nodiscard]] const State& state() const { return state_; }
  void restore(const State& state) { state_ = state; }

  /// Call after each evaluation, with the same loss on every rank.
  void update(double loss);

 private:
  config::PlateauConfig config_;
  double base_lr_;
  State state_;
};

}  // namespace accel
