#pragma once

#include <optional>
#include <string>

#include "ckpt/store/run_state.hpp"
#include "core/config/config.hpp"

namespace accel {

/// The factor on the learning rates of a schedule that follows the held-out loss.
///
/// `reduce_lr_on_plateau` is torch.optim.lr_scheduler.ReduceLROnPlateau with the mode `min`: the factor falls
/// when the loss has stopped falling. `greedy` is transformers.optimization.GreedyLR without smoothing:
/// Subramanian et al., "GreedyLR", 2025. There the factor also rises while the loss falls.
///
/// `min_lr` and `max_lr` bound the learning rate of the optimizer. Groups with another rate keep their ratio
/// to it, where torch bounds each by itself.
class Plateau {
 public:
  using State = ckpt::PlateauState;

  /// `base_lr` is the learning rate of the optimizer.
  Plateau(const config::SchedulerConfig& config, double base_lr);

  /// The factor for the next step.
  [[nodiscard]] double scale() const { return state_.scale; }
  [[nodiscard]] const State& state() const { return state_; }
  /// Goes on from `state`. What only greedy counts begins anew if `state` is of the other schedule.
  void restore(const State& state);

  /// Keeps the factor and the cooldown, and begins to compare losses anew: those that follow are of other
  /// data.
  void forget_losses();

  /// Call after each evaluation, with the same loss on every rank.
  void update(double loss);

 private:
  [[nodiscard]] bool is_better(double loss) const;
  void update_greedy(double loss);
  void reduce();
  void increase();

  bool is_greedy_;
  config::PlateauConfig config_;  ///< With a value for each option.
  double base_lr_;
  State state_;
};

}  // namespace accel
