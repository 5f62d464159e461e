#pragma once

#include <cstdint>

#include "core/config/config.hpp"

namespace accel {

/// The factor by which the loss is multiplied before backward, so that small gradients are not lost in
/// float16. It is adapted as torch.amp.GradScaler does: it falls when a gradient overflows, and grows after a
/// number of steps without an overflow.
///
/// The gradients of a step are those of the scaled loss. If all of them are finite on all ranks, they are
/// multiplied by inverse() and the optimizer makes its step. Otherwise the step is skipped. update() follows
/// in both cases, with the same arguments on every rank.
class GradScaler {
 public:
  /// The state in a checkpoint, beside the configuration.
  struct State {
    double scale = 0;
    std::int64_t growth_tracker = 0;  ///< Steps without an overflow since the scale last changed.
  };

  explicit GradScaler(const config::GradScalerConfig& config);

  /// The factor for the loss of the next backward.
  [[nodiscard]] double scale() const { return scale_; }
  /// The factor for the gradients of that backward, rounded as in torch.
  [[nodiscard]] double inverse() const;
  [[nodiscard]] State state() const { return {scale_, growth_tracker_}; }
  void restore(const State& state) {
    scale_ = static_cast<float>(state.scale);
    growth_tracker_ = state.growth_tracker;
  }
  [[nodiscard]] const config::GradScalerConfig& config() const { return config_; }

  /// Call after step `step`; `overflowed` says whether a gradient was infinite or NaN. Do not call it after a
  /// step whose loss was infinite or NaN, which no scale can cause. A scale below config::kLeastScale is an
  /// Error of kind kDiverged that names the step.
  void update(bool overflowed, std::int64_t step);

 private:
  config::GradScalerConfig config_;
  float scale_;  // float, as in torch.
  std::int64_t growth_tracker_ = 0;
};

}  // namespace accel
