#pragma once

#include <torch/csrc/jit/api/module.h>

#include "train/c10d/group.hpp"

namespace accel::train {

/// Gives all ranks rank 0's buffers of a model (running statistics, ...) before a forward, as
/// DistributedDataParallel does with `broadcast_buffers`: before the first, and before each that follows one
/// whose backward reduced the gradients, in training and evaluation alike.
///
/// Source: torch/nn/parallel/distributed.py, _pre_forward, _post_forward and _sync_buffers.
class BufferBroadcast {
 public:
  /// `module` and `group` must outlive it. A model without buffers costs nothing.
  BufferBroadcast(const torch::jit::Module& module, Group& group);

  /// Collective. One broadcast for each dtype that the buffers have. An expanded buffer, which nothing can be
  /// written into, is an Error of kind kUsage on every rank.
  void before_forward();
  void after_forward(bool reduces) { due_ = reduces; }

 private:
  const torch::jit::Module& module_;
  Group& group_;
  bool has_buffers_;
  bool due_ = true;
};

}  // namespace accel::train
