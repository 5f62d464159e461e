#include "train/optim/clip.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

namespace accel::train {

double gradient_square_sum(const std::vector<FlatBuffer*>& buffers) {
  const at::NoGradGuard no_grad;
  double sum = 0;
  for (const FlatBuffer* buffer : buffers) {
    const double norm = at::linalg_vector_norm(buffer->gradient(), 2).item<double>();
    sum += norm * norm;
  }
  return sum;
}

void clip_gradients(const std::vector<FlatBuffer*>& buffers, double norm, double max_norm) {
  const at::NoGradGuard no_grad;
  const double factor = std::min(1.0, max_norm / (norm + 1e-6));
  if (factor == 1.0) return;
  for (const FlatBuffer* buffer : buffers) at::Tensor(buffer->gradient()).mul_(factor);
}

}  // namespace accel::train
