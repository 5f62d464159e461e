#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "train/c10d/split_sum.hpp"
#include "train/fsdp/buffers/flat_buffer.hpp"

namespace accel::train {

/// Returns the 2-norm of a flat tensor as a float64 scalar on its device.
at::Tensor norm_of(const at::Tensor& values);

/// Returns the sum of squares of this rank's gradient shards. The sum of the results over the ranks of one
/// replica of `mesh` is the square of the global norm: if several of these ranks have the same gradient, each
/// counts its part of the squares. They do of a replicated parameter, and along tp of one that tensor
/// parallelism does not cut.
/// Gradients on the host are added up on the host, the others on their device, for which the host does not
/// wait.
SplitNumber gradient_square_sum(const std::vector<FlatBuffer*>& buffers, const Mesh& mesh);

/// Returns min(1, max_norm / (norm + 1e-6)), the factor by which torch.nn.utils.clip_grad_norm_ multiplies
/// gradients.
[[nodiscard]] double clip_factor(double norm, double max_norm);

/// Multiplies this rank's gradient shards by `factor`.
void scale_gradients(const std::vector<FlatBuffer*>& buffers, double factor);

}  // namespace accel::train
