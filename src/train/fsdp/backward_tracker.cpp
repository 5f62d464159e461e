#include "train/fsdp/backward_tracker.hpp"

namespace accel::train {

void BackwardTracker::on_call(bool has_own_backward) {
  if (!is_in_graph_ || has_own_backward) missing_gradients_ += trainable_parameters_;
  is_in_graph_ = true;
}

void BackwardTracker::on_output_gradient() {
  --missing_outputs_;
  has_begun_ = true;
}

void BackwardTracker::finish() {
  is_in_graph_ = false;
  missing_outputs_ = 0;
}

void BackwardTracker::reset() { *this = BackwardTracker(trainable_parameters_); }

}  // namespace accel::train
