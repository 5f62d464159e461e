#pragma once

#include <deque>

#include "train/fsdp/flat_buffer.hpp"

namespace accel::train {

/// The gradients that are on their way to the optimizer while backward goes on: of each buffer first the
/// reduce-scatter within the shard group, then, if the model has replicas, the all-reduce of the shard over
/// them, then, if the optimizer works elsewhere, the copy to there. Of parameters that every rank has whole
/// there is one all-reduce over all ranks instead. At most kMaxReducing of the first are
/// under way, for each holds a whole unsharded gradient; the second holds only what the optimizer needs
/// anyway, unless that is elsewhere: then at most kMaxStoring are under way, and as many copies; or unless a
/// communication hook makes something else of it: then at most kMaxHooked.
///
/// Collective, in the same order of buffers on every rank. A reduce-scatter is waited for on the thread that
/// runs backward, and the all-reduce begins there: what a backend calls back when it is done comes in no
/// certain order.
class ReduceQueue {
 public:
  /// `groups` must outlive it.
  explicit ReduceQueue(const MeshGroups& groups) : groups_(groups) {}

  void start(FlatBuffer& buffer);
  /// Waits until all gradients are there, but for what FlatBuffer::finalize_gradient() leaves to be waited
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
