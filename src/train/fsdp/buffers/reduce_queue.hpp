#pragma once

#include <deque>

#include "train/fsdp/buffers/flat_buffer.hpp"

namespace accel::train {

/// The gradients that are on their way to the optimizer while backward goes on.
///
/// The gradient of a buffer goes through three stages: the reduce-scatter over the shard group; the
/// all-reduce of the shard over the replicas, if the model has several; and the copy to the storage, if that
/// is offloaded. The gradient of replicated parameters has one all-reduce over all ranks instead of the first
/// two stages.
///
/// At most kMaxReducing reduce-scatters are under way, because each holds a whole unsharded gradient. An
/// all-reduce holds only the gradient of the shard, which the optimizer needs anyway, so that their number is
/// not limited, with two exceptions: at most kMaxStoring all-reduces, and as many copies, are under way if
/// the storage is offloaded, and at most kMaxHooked all-reduces with a communication hook.
///
/// All functions are collective, in the same order of buffers on every rank. The thread that runs backward
/// waits for a reduce-scatter and then starts the all-reduce: callbacks of a backend would come in no defined
/// order.
class ReduceQueue {
 public:
  /// `groups` must outlive it.
  explicit ReduceQueue(const MeshGroups& groups) : groups_(groups) {}

  void start(FlatBuffer& buffer);
  /// Waits until all gradients are reduced. FlatBuffer::finalize_gradient() says what must still be waited
  /// for.
  void finish();

 private:
  void finish_oldest_reduce();
  [[nodiscard]] Group& averaging_group(const FlatBuffer& buffer) const;
  [[nodiscard]] bool must_wait(const FlatBuffer& buffer) const;
  void average(FlatBuffer& buffer);
  void finish_oldest_average();
  void finalize(FlatBuffer& buffer);

  const MeshGroups& groups_;
  std::deque<FlatBuffer*> reducing_;
  std::deque<FlatBuffer*> averaging_;
  std::deque<FlatBuffer*> storing_;
};

}  // namespace accel::train
