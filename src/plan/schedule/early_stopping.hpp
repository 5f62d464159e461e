#pragma once

#include <optional>
#include <string>

#include "ckpt/store/best_checkpoint.hpp"
#include "ckpt/store/run_state.hpp"
#include "core/config/config.hpp"

namespace accel {

/// Ends a run whose evaluations have stopped improving, as transformers' EarlyStoppingCallback does.
class EarlyStopping {
 public:
  using State = ckpt::EarlyStoppingState;

  EarlyStopping(const config::EarlyStoppingConfig& config, const std::string& best_metric)
      : config_(config), metric_(best_metric) {}

  [[nodiscard]] const ckpt::BestMetric& metric() const { return metric_; }
  /// Empty before the first evaluation.
  [[nodiscard]] const std::optional<State>& state() const { return state_; }
  void restore(const State& state) { state_ = state; }

  /// Call after each evaluation, with the same value on every rank.
  void update(double value);
  /// Whether the run is to end: the last `patience` evaluations were not better than the best by more than
  /// `threshold`.
  [[nodiscard]] bool is_reached() const;
  /// Why it is to end, for messages.
  [[nodiscard]] std::string why() const;

 private:
  config::EarlyStoppingConfig config_;
  ckpt::BestMetric metric_;
  std::optional<State> state_;
};

}  // namespace accel
