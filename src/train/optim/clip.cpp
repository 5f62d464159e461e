#include "train/optim/clip.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "train/device/read_numbers.hpp"

namespace accel::train {

std::vector<at::Tensor> gradient_norms(const std::vector<FlatBuffer*>& buffers) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> norms;
  for (const FlatBuffer* buffer : buffers) norms.push_back(at::linalg_vector_norm(buffer->gradient(), 2));
  return norms;
}

double gradient_square_sum(const std::vector<FlatBuffer*>& buffers, int shards,
                           std::span<const double> norms) {
  double sum = 0;
  for (std::size_t i = 0; i < buffers.size(); ++i)
    sum += norms[i] * norms[i] / (buffers[i]->layout().is_replicated() ? shards : 1);
  return sum;
}

// Offloaded gradients are on the host, gradients of replicated parameters on the device.
double gradient_square_sum(const std::vector<FlatBuffer*>& buffers, int shards) {
  return gradient_square_sum(buffers, shards, read_numbers(gradient_norms(buffers)));
}

double clip_factor(double norm, double max_norm) { return std::min(1.0, max_norm / (norm + 1e-6)); }

void scale_gradients(const std::vector<FlatBuffer*>& buffers, double factor) {
  if (factor == 1) return;
  const at::NoGradGuard no_grad;
  for (const FlatBuffer* buffer : buffers) at::Tensor(buffer->gradient()).mul_(factor);
}

}  // namespace accel::train
