#pragma once

#include <cstdint>

namespace accel::train {

/// How far backward has come through one unit, counted by the hooks on its parameters, inputs and outputs.
///
/// Backward begins when the gradient of an output comes. It is done when all trainable parameters and all
/// inputs have their gradients: only then has every backward node that reads the parameters run.
class BackwardTracker {
 public:
  /// `trainable_parameters` is the number of parameters of the unit that get a gradient in a backward.
  explicit BackwardTracker(std::int64_t trainable_parameters) : trainable_parameters_(trainable_parameters) {}

  /// A call of the unit with grad. The gradients of the parameters are expected once for all calls of a
  /// micro-batch, and in addition once for each call with a backward of its own, as recomputation has it.
  void on_call(bool has_own_backward);
  /// A hook was put on an input of the call, or on an output.
  void on_hooked_input() { ++missing_inputs_; }
  void on_hooked_output() { ++missing_outputs_; }

  /// The gradient of a parameter is there. Returns whether none is missing.
  bool on_parameter_gradient() { return --missing_gradients_ <= 0; }
  void on_input_gradient() { --missing_inputs_; }
  /// The gradient of an output is there: the unit's parameters are needed from now on.
  void on_output_gradient();

  [[nodiscard]] bool is_done() const { return missing_gradients_ <= 0 && missing_inputs_ <= 0; }
  /// Whether backward is still to come through the unit, or to come back to it.
  [[nodiscard]] bool awaits_backward() const { return missing_outputs_ > 0 && !(has_begun_ && is_done()); }

  /// Call after backward: no further gradient of an output is expected.
  void finish();
  /// Call before a micro-batch: forgets what an earlier forward left to be waited for.
  void reset();

 private:
  std::int64_t trainable_parameters_;
  bool is_in_graph_ = false;            ///< A backward will come through the unit.
  bool has_begun_ = false;              ///< The gradient of an output has come.
  std::int64_t missing_gradients_ = 0;  ///< Gradients of trainable parameters that have not come.
  std::int64_t missing_inputs_ = 0;     ///< Inputs whose gradient has not come.
  std::int64_t missing_outputs_ = 0;    ///< Outputs whose gradient has not come.
};

}  // namespace accel::train
