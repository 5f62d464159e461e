#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace accel::train {

/// A target that does not count, torch's default. Samples::to_device() gives it to others.
inline constexpr std::int64_t kIgnoredTarget = -100;

/// Returns the first target on the CPU that is not a class and not kIgnoredTarget. On CUDA the kernels find
/// it, as in torch.
std::optional<std::int64_t> wrong_class(const at::Tensor& targets, std::int64_t classes);

/// Throws Error (kUsage) if there is a wrong_class().
void require_classes(const at::Tensor& targets, std::int64_t classes);

/// Returns which targets count, as booleans of the same shape: those that are not -100. Integers are compared
/// as int64, because uint8 cannot hold -100 and would take 156 for it.
at::Tensor counted_targets(const at::Tensor& targets);

/// Returns the cross entropy between `logits` [n, classes], of any floating type, and int64 `targets` [n]:
/// the mean over all targets that are not -100, and NaN if there are none. The result is a float32 scalar
/// (float64 for float64 logits), bit for bit what at::cross_entropy_loss yields for logits in float32. So is
/// the gradient, which has the type of the logits.
///
/// The rows are processed a few at a time, so that no intermediate tensor is as large as the logits, except
/// for their gradient. at::cross_entropy_loss keeps the logarithms of the probabilities, makes the gradient
/// of those as well, and makes a float32 copy of logits in 16 bits. A target that is not a class is an Error
/// of kind kUsage on the CPU. On CUDA the kernels find it, as in torch.
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets);

}  // namespace accel::train
