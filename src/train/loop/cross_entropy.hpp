#pragma once

#include <ATen/core/Tensor.h>

namespace accel::train {

/// The mean over all targets but those that are -100 of the cross entropy between `logits` [n, classes], of
/// any floating type, and int64 `targets` [n], as a float32 scalar (float64 for such logits): bit for bit
/// what at::cross_entropy_loss yields for logits in float32, gradient included, which has the type of the
/// logits. NaN if no target counts.
///
/// Rows go through it a few at a time, so that of what it computes on the way nothing is as large as the
/// logits but their gradient, where at::cross_entropy_loss keeps their logarithms and makes the gradient of
/// those as well, and a copy in float32 of logits in 16 bits. A target that is no class is an Error of
/// kind kUsage on the CPU; on CUDA it is found by the kernels, as in torch.
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets);

}  // namespace accel::train
