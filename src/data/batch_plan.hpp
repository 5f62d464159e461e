#pragma once

#include <cstdint>
#include <vector>

namespace accel {

/// Which samples of an epoch make up the batch of each rank at each micro-step.
///
/// The epoch's samples, in order, are cut into batches; micro-step s on rank r takes batch s * world_size +
/// r, as Accelerate's BatchSamplerShard does. With drop_last, batches that are short or that not every rank
/// gets are dropped; without, they are completed from the epoch's start (Accelerate's even_batches).
struct BatchPlan {
  std::int64_t samples = 0;
  std::int64_t batch_size = 1;  ///< Samples a rank and micro-step.
  int world_size = 1;
  bool drop_last = true;

  /// Micro-steps in an epoch; 0 if there are too few samples for one.
  [[nodiscard]] std::int64_t steps() const;
  /// Positions in the epoch's order (SampleOrder) of the batch of `rank` at micro-step `step`.
  [[nodiscard]] std::vector<std::int64_t> positions(std::int64_t step, int rank) const;
};

}  // namespace accel
