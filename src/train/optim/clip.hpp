#pragma once

#include <vector>

#include "train/fsdp/flat_buffer.hpp"

namespace accel::train {

/// The sum of squares of this rank's gradient shards; summed over ranks, the square of the global norm.
double gradient_square_sum(const std::vector<FlatBuffer*>& buffers);

/// Scales the gradients by min(1, max_norm / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_ does.
void clip_gradients(const std::vector<FlatBuffer*>& buffers, double norm, double max_norm);

}  // namespace accel::train
