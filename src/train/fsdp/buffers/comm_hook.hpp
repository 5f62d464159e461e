#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>

#include "core/config/config.hpp"
#include "train/c10d/group.hpp"
#include "train/fsdp/buffers/power_sgd.hpp"

namespace accel::train {

/// Takes the mean of a flat gradient over all ranks by other means than an all-reduce of the gradient itself,
/// for a buffer with one shard: what DistributedDataParallel calls a communication hook. The buffer is the
/// bucket.
///
/// Source: torch, fp16_compress_hook, bf16_compress_hook and powerSGD_hook, each alone or in
/// fp16_compress_wrapper or bf16_compress_wrapper. Divisions, sums and casts come in torch's order.
class CommHook {
 public:
  /// Returns null if the configuration has no hook. All buffers of a model share one `seeds`.
  static std::unique_ptr<CommHook> make(const config::DdpConfig& config, const FlatLayout& layout,
                                        const std::shared_ptr<NumpyRandom>& seeds);

  CommHook(const config::DdpConfig& config, const FlatLayout& layout,
           const std::shared_ptr<NumpyRandom>& seeds);

  /// Starts with this rank's `gradient` [layout.numel()]; finish() replaces it by the mean over the ranks of
  /// `group`. Both are collective, and each start() is followed by its finish().
  void start(Group& group, const at::Tensor& gradient);
  void finish();
  /// Drops the state that is kept from step to step. Call it on all ranks after a step whose gradient was
  /// infinite or NaN.
  void reset();
  /// The dtype of the gradients that PowerSGD gets, and of its state.
  [[nodiscard]] at::ScalarType power_sgd_dtype() const { return outer_dtype_.value_or(at::kFloat); }
  /// PowerSGD, if the hook is that; else null.
  [[nodiscard]] PowerSgd* power_sgd() { return low_rank_ ? &*low_rank_ : nullptr; }

 private:
  std::optional<at::ScalarType> outer_dtype_;  // The wrapper's dtype.
  std::optional<at::ScalarType> inner_dtype_;  // The dtype that is sent; none if low_rank_ sends.
  std::optional<PowerSgd> low_rank_;

  // State between start() and finish(). Several of the tensors may be the same.
  at::Tensor gradient_;
  at::Tensor outer_;
  at::Tensor inner_;
  Pending pending_;
};

}  // namespace accel::train
