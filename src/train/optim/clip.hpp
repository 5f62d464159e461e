#pragma once

#include <vector>

#include "train/fsdp/flat_buffer.hpp"

namespace accel::train {

/// The sum of squares of this rank's gradient shards, of `shards` there are; summed over their ranks, the
/// square of the global norm. What every rank has whole counts as one part of so many.
double gradient_square_sum(const std::vector<FlatBuffer*>& buffers, int shards);

/// min(1, max_norm / (norm + 1e-6)): by what torch.nn.utils.clip_grad_norm_ multiplies the gradients.
[[nodiscard]] double clip_factor(double norm, double max_norm);

/// Multiplies this rank's gradient shards.
void scale_gradients(const std::vector<FlatBuffer*>& buffers, double factor);

}  // namespace accel::train
