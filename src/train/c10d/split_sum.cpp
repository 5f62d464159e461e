#include "train/c10d/split_sum.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace accel::train {

SplitNumber::SplitNumber(const at::Tensor& scalar) {
  if (scalar.is_cpu()) {
    on_host = scalar.item<double>();
  } else {
    on_device = scalar.to(at::kDouble);
  }
}

std::vector<double> sum_over_ranks(std::span<const SplitNumber> own, Group& group) {
  const at::NoGradGuard no_grad;
  std::vector<double> sums;
  std::vector<at::Tensor> parts;
  at::Tensor zero;
  for (const SplitNumber& number : own) {
    sums.push_back(number.on_host);
    if (number.on_device.defined() && !zero.defined()) zero = at::zeros_like(number.on_device);
  }
  if (zero.defined()) {
    for (const SplitNumber& number : own)
      parts.push_back(number.on_device.defined() ? number.on_device : zero);
  }
  group.all_reduce_sum(sums, parts.empty() ? at::Tensor() : at::stack(parts));
  return sums;
}

}  // namespace accel::train
