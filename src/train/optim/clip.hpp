#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "train/fsdp/flat_buffer.hpp"

namespace accel::train {

/// Returns the 2-norm of a flat tensor as a float64 scalar on its device.
at::Tensor norm_of(const at::Tensor& values);

/// Returns the norms of this rank's gradient shards, as scalars on the gradients' devices, for
/// read_numbers().
std::vector<at::Tensor> gradient_norms(const std::vector<FlatBuffer*>& buffers);

/// Returns the sum of squares of this rank's gradient shards. The sum of the results over the `shards` ranks
/// is the square of the global norm: each rank counts 1/`shards` of the squares of a replicated gradient.
/// `norms` are the values of gradient_norms(). Without them the host waits for the device.
double gradient_square_sum(const std::vector<FlatBuffer*>& buffers, int shards,
                           std::span<const double> norms);
double gradient_square_sum(const std::vector<FlatBuffer*>& buffers, int shards);

/// Returns min(1, max_norm / (norm + 1e-6)), the factor by which torch.nn.utils.clip_grad_norm_ multiplies
/// gradients.
[[nodiscard]] double clip_factor(double norm, double max_norm);

/// Multiplies this rank's gradient shards by `factor`.
void scale_gradients(const std::vector<FlatBuffer*>& buffers, double factor);

}  // namespace accel::train
