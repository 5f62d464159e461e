#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "train/c10d/group.hpp"

namespace accel::train {

/// What linear_cross_entropy() works on: hidden states [n, width] and a linear with weight [classes, width]
/// and bias [classes], or none. All three may require grad or not.
struct LinearHead {
  at::Tensor hidden;
  at::Tensor weight;
  at::Tensor bias;
  /// The ranks that have a part of the classes each, in their order and of one size; null if this rank has
  /// all. They have equal hidden states, and weight and bias are this rank's part.
  Group* ranks = nullptr;

  [[nodiscard]] std::int64_t classes() const { return weight.size(0) * (ranks ? ranks->size() : 1); }
};

/// The targets [n] of int64, and what a cross entropy takes of them.
struct HeadTargets {
  at::Tensor classes;
  std::int64_t counted = 0;  ///< How many of them are not kIgnoredTarget.
  at::Tensor class_weights;  ///< [classes] of the loss's dtype; undefined if all weigh alike.
  double label_smoothing = 0;
  double z_loss = 0;
};

struct HeadLoss {
  at::Tensor loss;   ///< A scalar of float32, or of float64 for a head of float64.
  at::Tensor right;  ///< How many targets that count have the largest logit; undefined with grad.
  at::Tensor nll;  ///< The mean of their negative log-likelihoods, of the loss's dtype; undefined with grad.
};

/// The least bytes of float32 logits that exist at a time. With fewer rows a GPU's kernels, and a CPU's
/// reading of the weight, would take longer than the products.
inline constexpr std::int64_t kHeadChunkBytes = std::int64_t{64} << 20;

/// The least rows at a time on another device, with grad. With fewer an H200 takes long to read the weight
/// and to add to its gradient: 333 rows took up to a half more time, and 2048 up to a tenth less
/// (bench/journal-gpu.md).
inline constexpr std::int64_t kHeadDeviceRows = 1024;

/// Returns cross_entropy, with torch.nn.CrossEntropyLoss's options and a z_loss, of the logits of a linear,
/// but for rounding: the mean over the targets that count, and NaN if none does. Autocast is obeyed as by
/// aten::linear.
///
/// The logits never exist as a whole. The rows whose targets count are processed some at a time: those of
/// `chunk_bytes` of float32 logits, by default kHeadChunkBytes; with grad at least as many as the gradient of
/// the hidden states takes, and on another device than a CPU those of kHeadDeviceRows rows. Each part reads
/// the weight and adds to its gradient, so that few large parts are better. With grad this makes all
/// gradients as well, in one pass: backward multiplies them by the gradient of the loss. So the weight need
/// not exist in backward. Its gradient is added up in float32. Source: Liger-Kernel's
/// LigerFusedLinearCrossEntropyFunction.
///
/// If several ranks have the classes, they exchange numbers of each row, and no logits: the largest logit,
/// and sums. The loss and the gradient of the hidden states are then equal on all of them, bit for bit.
/// Source: Megatron-LM's vocab_parallel_cross_entropy. Collective among them, with equal targets.
HeadLoss linear_cross_entropy(const LinearHead& head, const HeadTargets& targets,
                              std::optional<std::int64_t> chunk_bytes = std::nullopt);

}  // namespace accel::train
