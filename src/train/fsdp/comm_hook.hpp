#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>

#include "core/config/config.hpp"
#include "train/c10d/group.hpp"
#include "train/fsdp/power_sgd.hpp"

namespace accel::train {

/// How the flat gradient of one buffer that every rank has whole becomes the mean of all ranks, if it is not
/// by an all-reduce as it is: what DistributedDataParallel calls a communication hook, with the buffer as its
/// bucket.
///
/// Source: torch, fp16_compress_hook, bf16_compress_hook and powerSGD_hook, each as it is or in
/// fp16_compress_wrapper or bf16_compress_wrapper; division, sum and casts in their order.
class CommHook {
 public:
  /// Null if the configuration has none. `seeds` are for the buffers of one model together.
  static std::unique_ptr<CommHook> make(const core::DdpConfig& config, const FlatLayout& layout,
                                        const std::shared_ptr<NumpyRandom>& seeds);

  CommHook(const core::DdpConfig& config, const FlatLayout& layout,
           const std::shared_ptr<NumpyRandom>& seeds);

  /// `gradient` [layout.numel()] is that of this rank; finish() makes it the mean over the ranks of `group`.
  /// Both are collective, and no other gradient of the buffer comes in between.
  void start(Group& group, const at::Tensor& gradient);
  void finish();
  /// After a step whose gradient was infinite or NaN: what is kept for the next one begins anew. On all ranks
  /// alike.
  void forget();

 private:
  std::optional<at::ScalarType> outer_dtype_;  // Of the wrapper,
  std::optional<at::ScalarType> inner_dtype_;  // and of what is sent, unless it is low_rank_'s.
  std::optional<PowerSgd> low_rank_;

  // Between start() and finish(). One of them may be the other.
  at::Tensor gradient_;
  at::Tensor outer_;
  at::Tensor inner_;
  Pending pending_;
};

}  // namespace accel::train
