#pragma once

#include <span>
#include <string_view>

namespace accel {

/// A tensor that an optimizer keeps for each trainable parameter: float32, and of the parameter's shape.
struct OptimizerTensor {
  std::string_view name;  ///< Its name in torch's state dict.
};

/// What an optimizer stores. Memory and disk space, the state in checkpoints and their reading follow from
/// it.
struct OptimizerPlan {
  std::string_view type;  ///< The value of training.optimizer.type.
  std::span<const OptimizerTensor> tensors;
};

/// The plan of a value of training.optimizer.type that accel supports.
const OptimizerPlan& optimizer_plan(std::string_view type);

}  // namespace accel
