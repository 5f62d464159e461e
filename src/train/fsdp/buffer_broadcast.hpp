#pragma once

#include <torch/csrc/jit/api/module.h>

#include "train/c10d/group.hpp"

namespace accel::train {

/// Broadcasts rank 0's buffers of a model (running statistics, ...) to all ranks before a forward, as
/// DistributedDataParallel does with `broadcast_buffers`. It does so before the first forward, and before
/// each forward that follows a backward with reduced gradients, in training and in evaluation.
///
/// Source: torch/nn/parallel/distributed.py, _pre_forward, _post_forward and _sync_buffers.
class BufferBroadcast {
 public:
  /// `module` and `group` must outlive it. A model without buffers costs nothing.
  BufferBroadcast(const torch::jit::Module& module, Group& group);

  /// Collective. There is one broadcast for each dtype that the buffers have. An expanded buffer cannot be
  /// written and is an Error of kind kUsage on every rank.
  void before_forward();
  void after_forward(bool reduces) { due_ = reduces; }

 private:
  const torch::jit::Module& module_;
  Group& group_;
  bool has_buffers_;
  bool due_ = true;
};

}  // namespace accel::train
