#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/layout/flat_layout.hpp"
#include "train/fsdp/buffers/flat_buffer.hpp"

namespace accel::train {

/// The state of the parameters of one group in one buffer, for this rank's shard.
struct OptimizerState {
  FlatBuffer* buffer = nullptr;
  std::size_t buffer_index = 0;  ///< The number of the buffer among those of the optimizer.
  GroupRange range;              ///< The group and its parameters.
  ElementRange in_shard;         ///< Where the group's elements lie in the shard; it may be empty.
  std::vector<at::Tensor>
      tensors;  ///< Those of the group, each [numel_on_rank()] (plan/layout/state_tensor.hpp).
  /// For each parameter of the range, the number of steps in which it had a gradient, also of parameters of
  /// which this rank has no part.
  std::vector<std::int64_t> steps;

  /// The number of steps of a parameter of the buffer's layout.
  [[nodiscard]] std::int64_t steps_of(std::size_t parameter) const {
    return steps.at(parameter - range.first);
  }
  /// Whether a step changes the state, or the parameters that it is for.
  [[nodiscard]] bool changes_with(const std::vector<bool>& has_gradient) const {
    const auto begin = has_gradient.begin();
    return std::find(begin + static_cast<std::ptrdiff_t>(range.first),
                     begin + static_cast<std::ptrdiff_t>(range.end),
                     true) != begin + static_cast<std::ptrdiff_t>(range.end);
  }
  /// Whether a parameter of the layout is one of the group.
  [[nodiscard]] bool has(std::size_t parameter) const {
    return parameter >= range.first && parameter < range.end;
  }
};

}  // namespace accel::train
