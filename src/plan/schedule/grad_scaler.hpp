#pragma once

#include <cstdint>

#include "core/config/config.hpp"

namespace accel {

/// The factor by which the loss is multiplied before backward, so that small gradients are not lost in
/// float16; it is found by trying, as torch.amp.GradScaler does: it falls when a gradient overflows, and
/// grows when none has for a while.
///
/// The gradients of a step are those of the scaled loss. Where they are finite they are multiplied by
/// inverse(), and the optimizer makes its step; where one is not, on any rank, the step is skipped. update()
/// follows in both cases, with the same argument on every rank.
class GradScaler {
 public:
  /// What goes into a checkpoint, beside the configuration.
  struct State {
    double scale = 0;
    std::int64_t growth_tracker = 0;  ///< Steps without an overflow since the scale last changed.
  };

  explicit GradScaler(const core::GradScalerConfig& config);

  /// Of the loss of the next backward.
  [[nodiscard]] double scale() const { return scale_; }
  /// Of the gradients of that backward, rounded as torch does.
  [[nodiscard]] double inverse() const;
  [[nodiscard]] State state() const { return {scale_, growth_tracker_}; }
  [[nodiscard]] const core::GradScalerConfig& config() const { return config_; }

  /// After step `step`, in which a gradient was infinite or NaN, or none. Not after one whose loss was: no
  /// scale is to blame for that. That the scale falls below core::kLeastScale is an Error of kind kFailure
  /// that names the step.
  void update(bool overflowed, std::int64_t step);

 private:
  core::GradScalerConfig config_;
  float scale_;  // As in torch.
  std::int64_t growth_tracker_ = 0;
};

}  // namespace accel
