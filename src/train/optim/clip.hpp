#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "train/fsdp/flat_buffer.hpp"

namespace accel::train {

/// The norms of this rank's gradient shards: scalars where the gradients are, for read_numbers().
std::vector<at::Tensor> gradient_norms(const std::vector<FlatBuffer*>& buffers);

/// The sum of squares of this rank's gradient shards, of `shards` there are; summed over their ranks, the
/// square of the global norm. What every rank has whole counts as one part of so many. `norms` are the values
/// of gradient_norms(); without them the host waits for the device.
double gradient_square_sum(const std::vector<FlatBuffer*>& buffers, int shards,
                           std::span<const double> norms);
double gradient_square_sum(const std::vector<FlatBuffer*>& buffers, int shards);

/// min(1, max_norm / (norm + 1e-6)): by what torch.nn.utils.clip_grad_norm_ multiplies the gradients.
[[nodiscard]] double clip_factor(double norm, double max_norm);

/// Multiplies this rank's gradient shards.
void scale_gradients(const std::vector<FlatBuffer*>& buffers, double factor);

}  // namespace accel::train
