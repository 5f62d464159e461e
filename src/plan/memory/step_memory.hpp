#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace accel {

/// Gradient buffers that may wait for their reduce-scatter at once.
inline constexpr std::size_t kMaxReducing = 2;

/// Gradients of shards that, with offloading, may wait for their all-reduce at once, and as many that may
/// wait for the copy to the host.
inline constexpr std::size_t kMaxStoring = 2;

/// Gradients that a communication hook may have under way at once, each with copies of its own.
inline constexpr std::size_t kMaxHooked = 2;

/// The sizes of one flat buffer.
struct StepBuffer {
  std::uint64_t bytes = 0;           ///< Bytes of the unsharded parameters.
  std::uint64_t gradient_bytes = 0;  ///< Bytes of the unsharded gradient; 0 if there is none.
};

/// A unit, with the units that run inside it.
struct StepUnit {
  std::vector<StepBuffer> buffers;
  std::vector<StepUnit> inner;             ///< The inner units, in the order in which they run.
  std::uint64_t shard_gradient_bytes = 0;  ///< Gradients of this rank's shards, as the optimizer reads them.
  std::uint64_t replicated_gradient_bytes = 0;  ///< The part of shard gradients for replicated parameters.
  /// The most bytes that the gradients of one parameter take before they are in the flat gradient.
  std::uint64_t gradient_temp_bytes = 0;
  /// The reduced gradient of one shard, if it is copied into the dtype of the shard.
  std::uint64_t finalizing_bytes = 0;
  /// Autocast's copies of the parameters, which forward makes and backward needs.
  std::uint64_t cast_bytes = 0;
  bool stays_gathered = false;  ///< The unit stays gathered from forward to backward, as the root does.
  bool recomputes = true;       ///< It is recomputed if StepOptions::recompute is set. The root never is.
};

/// The most memory of each kind during a step.
struct StepMemory {
  std::uint64_t parameter_bytes = 0;    ///< Unsharded parameters.
  std::uint64_t gradient_bytes = 0;     ///< Unsharded gradients, including those that are being reduced.
  std::uint64_t group_shard_bytes = 0;  ///< Shards of reshard groups, kept for backward.
  /// The pool at the end of the step. Blocks are reused only for buffers of the same size.
  std::uint64_t pool_bytes = 0;
  std::size_t units = 0;  ///< Unsharded units at once, including the root.
  /// Gradients that are not in the flat gradients yet, in addition to the gradients of all shards; some of
  /// the latter do not exist yet at that moment, unless they are on the host. If it is larger, a reduced
  /// gradient that is being copied into the shard's dtype counts instead.
  std::uint64_t gradient_temp_bytes = 0;
  /// Autocast's copies, in addition to the gradients. The more gradients exist, the fewer copies do.
  std::uint64_t cast_bytes = 0;
};

struct StepOptions {
  bool one_shard = false;  ///< There is no reduce-scatter: gradients are the shard's at once.
  bool averages = false;   ///< There are replicas, which average the gradients until the end of backward.
  /// Gradients are copied to the host.
  bool stored_on_host = false;
  /// Memory of unsharded gradients is kept from step to step, as on CPU ranks.
  bool keeps_blocks = false;
  bool reshard_after_forward = true;
  /// Ranks of the reshard group that keeps a unit for backward; 0 if there is none.
  int reshard_size = 0;
  bool forward_prefetch = false;
  bool backward_prefetch = false;
  int prefetch_depth = 1;  ///< That of PrefetchSchedule.
  /// Gradient accumulation: the gradients of all units stay unsharded until the last micro-batch.
  bool accumulates = false;
  /// Activation checkpointing: a unit is recomputed in backward together with the units inside it, whose
  /// gradients are reduced at the end of backward only.
  bool recompute = false;
};

/// Simulates a step as train/fsdp/unit.cpp runs it, for the buffers whose parameters are not views of the
/// shard. Every unit runs once, in the given order. The units that are gathered ahead are those of the
/// engine's PrefetchSchedule.
///
/// Forward: a unit gathers its parameters, runs, and frees them, or keeps the shard of its reshard group. The
/// root frees its parameters at the end of backward. Backward: a unit is gathered while the unit that runs
/// after it is still unsharded, because the gradient that starts the backward of the one ends that of the
/// other. The gradients of a unit are copied into a flat buffer, which waits for its reduce-scatter with at
/// most kMaxReducing others. The gradients of the root, and of a unit around others, may come until the last
/// inner unit is done. Autocast's copies of a unit's parameters exist from its forward with grad, which is
/// the recomputation if there is one, until its gradients are complete.
///
/// The structure does not tell what a unit computes before, between and after the units inside it. This
/// decides whether one unit is freed before the next is gathered, and whose gradients are complete first.
/// Each number is therefore the maximum over the possibilities, in each of which all units around others but
/// the root do the same. If they do the same in a model, its step needs no more, and sometimes a block or two
/// less, or three if several units are gathered ahead. If they do different things, its step may need a block
/// more.
StepMemory memory_of_step(const StepUnit& root, const StepOptions& options);

}  // namespace accel
