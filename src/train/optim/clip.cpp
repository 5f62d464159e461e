#include "train/optim/clip.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace accel::train {

double gradient_square_sum(const std::vector<FlatBuffer*>& buffers, int shards) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> norms;
  for (const FlatBuffer* buffer : buffers)
    norms.push_back(at::linalg_vector_norm(buffer->gradient(), 2).to(at::kDouble));
  if (norms.empty()) return 0;
  // All at once: the host waits for the device each time it asks for a number.
  const at::Tensor on_host = at::stack(norms).cpu();
  double sum = 0;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const double norm = on_host.const_data_ptr<double>()[i];
    sum += norm * norm / (buffers[i]->layout().is_whole() ? shards : 1);
  }
  return sum;
}

double clip_factor(double norm, double max_norm) { return std::min(1.0, max_norm / (norm + 1e-6)); }

void scale_gradients(const std::vector<FlatBuffer*>& buffers, double factor) {
  if (factor == 1) return;
  const at::NoGradGuard no_grad;
  for (const FlatBuffer* buffer : buffers) at::Tensor(buffer->gradient()).mul_(factor);
}

}  // namespace accel::train
