#pragma once

#include <cstdint>
#include <vector>

namespace accel {

/// The samples of an epoch as micro-batches of the data ranks, which are the ranks that train on batches of
/// their own.
///
/// The epoch's samples, in order, are cut into batches. Micro-batch s of rank r is batch s * data_size + r,
/// as in Accelerate's BatchSamplerShard. With drop_last, batches that are short or that not every rank gets
/// are dropped. Without it, they are completed from the epoch's start (Accelerate's even_batches).
///
/// A run that goes on in the middle of an epoch, on any number of ranks, sets `begin`: the plan is then of
/// the samples from there on.
struct BatchPlan {
  std::int64_t samples = 0;
  std::int64_t batch_size = 1;  ///< Samples in a rank's micro-batch.
  int data_size = 1;            ///< The number of data ranks.
  bool drop_last = true;
  std::int64_t begin = 0;  ///< The samples of the epoch that are done before micro-batch 0.

  /// The micro-batches of each rank in the epoch from `begin` on, or 0 if too few samples are left for one.
  [[nodiscard]] std::int64_t steps() const;
  /// The samples of all data ranks in a whole epoch: without those that are dropped, and with those that
  /// complete the last batches.
  [[nodiscard]] std::int64_t epoch_samples() const;
  /// The optimizer steps of a whole epoch. Each takes so many micro-batches of each rank, and the last one of
  /// the epoch may take fewer.
  [[nodiscard]] std::int64_t steps_per_epoch(std::int64_t accumulated) const;
  /// The optimizer steps that are left until `epochs` epochs are done, when `epoch` whole ones and so many
  /// samples of the next are. Throws Error (kCorrupt) if their number overflows.
  [[nodiscard]] std::int64_t steps_until(std::int64_t epochs, std::int64_t epoch, std::int64_t samples_done,
                                         std::int64_t accumulated) const;
  /// The epochs that are done, as one number, when `epoch` whole ones and so many samples of the next are.
  [[nodiscard]] double epochs(std::int64_t epoch, std::int64_t samples_done) const;
  /// The epochs that are done after so many optimizer steps from the beginning.
  [[nodiscard]] double epochs_after(std::int64_t optimizer_steps, std::int64_t accumulated) const;
  /// Positions in the epoch's order (SampleOrder) of the samples in micro-batch `step` of `rank`.
  [[nodiscard]] std::vector<std::int64_t> positions(std::int64_t step, int rank) const;
};

}  // namespace accel
