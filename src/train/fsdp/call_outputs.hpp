#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <memory>
#include <span>
#include <vector>

#include "train/graph/run/module_state.hpp"

namespace accel::train {

/// Finds the tensors through which backward comes into the calls of one unit: the results of a call, the
/// inputs that it has changed in place, and the tensors that it has put into lists and dicts among its
/// arguments or into attributes of the module.
///
/// begin() and end() enclose a call, also one inside another call of the unit. The outermost call alone looks
/// for tensors in attributes. Without grad nothing is looked for.
class CallOutputs {
 public:
  explicit CallOutputs(std::shared_ptr<const ModuleState> state) : state_(std::move(state)) {}

  void begin(std::span<const c10::IValue> arguments, bool is_outermost);
  /// The tensors, in the order that the description of the class names. A tensor may occur several times, and
  /// some of them may not require grad.
  [[nodiscard]] std::vector<at::Tensor> end(std::span<const c10::IValue> arguments, const c10::IValue& result,
                                            bool is_outermost);
  /// Forgets calls that an exception has ended.
  void reset();

 private:
  void add_attributes(std::vector<at::Tensor>& outputs, const ModuleState::TensorVersions& inputs) const;

  std::shared_ptr<const ModuleState> state_;
  /// The input tensors, with their versions, of each call under way.
  std::vector<ModuleState::TensorVersions> inputs_;
  ModuleState::TensorVersions attributes_;  ///< The attributes before the outermost call.
};

}  // namespace accel::train
