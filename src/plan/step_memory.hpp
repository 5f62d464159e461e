#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace accel {

/// Gradient buffers that may wait for their reduce-scatter at once.
inline constexpr std::size_t kMaxReducing = 2;

/// If the optimizer works elsewhere: gradients of a shard that may wait for their all-reduce at once, and as
/// many for the copy to there.
inline constexpr std::size_t kMaxStoring = 2;

/// Gradients that a communication hook may have under way at once, each with copies of its own.
inline constexpr std::size_t kMaxHooked = 2;

/// No unit is gathered ahead while so many are unsharded: the root, the one that runs, and another.
inline constexpr int kMostUnsharded = 3;

/// One flat buffer as far as the memory of a step depends on it.
struct StepBuffer {
  std::uint64_t bytes = 0;           ///< Unsharded.
  std::uint64_t gradient_bytes = 0;  ///< Of its unsharded gradient; 0: it has none.
};

/// A unit, with the units that run inside it.
struct StepUnit {
  std::vector<StepBuffer> buffers;
  std::vector<StepUnit> inner;             ///< In the order in which they run.
  std::uint64_t shard_gradient_bytes = 0;  ///< This rank's part of its gradients, as the optimizer gets it.
  std::uint64_t replicated_gradient_bytes = 0;  ///< Of these, of parameters that every rank has whole.
  /// The most that the gradients of one parameter take before they are in the flat one.
  std::uint64_t arriving_bytes = 0;
  /// Of this rank's part of one buffer's gradients, reduced, if it is then copied into the dtype of the
  /// shard.
  std::uint64_t finalizing_bytes = 0;
  /// Of the copies that autocast makes of its parameters in forward, and that backward needs.
  std::uint64_t cast_bytes = 0;
  bool stays_gathered = false;  ///< From forward to backward, as the root.
  bool recomputes = true;       ///< If units do; the root never does.
};

/// What is unsharded during a step, at most.
struct StepMemory {
  std::uint64_t parameter_bytes = 0;    ///< Unsharded parameters at once.
  std::uint64_t gradient_bytes = 0;     ///< Unsharded gradients at once, those on their way included.
  std::uint64_t group_shard_bytes = 0;  ///< What a reshard group keeps for backward, at once.
  /// What the pool ends up with: blocks are used again for buffers of the same size, and only for those.
  std::uint64_t pool_bytes = 0;
  std::size_t units = 0;  ///< With their parameters unsharded at once, the root among them.
  /// What gradients on their way into flat ones take at most beyond all the shards' gradients, of which some
  /// are yet to come then, unless these are on the host. Or a reduced one on its way into the shard's dtype.
  std::uint64_t arriving_bytes = 0;
  /// What autocast's copies take at most beyond these: the more gradients there are, the fewer of them.
  std::uint64_t cast_bytes = 0;
};

struct StepOptions {
  bool one_shard = false;  ///< Gradients are not reduced: the shard has them at once,
  bool averages = false;   ///< or, if there are replicas, at the end of backward,
  /// or, if it lies there, when they have been copied to the host.
  bool stored_on_host = false;
  /// Memory of gradients that are not cut is kept from step to step, as ranks on CPUs do.
  bool keeps_blocks = false;
  bool reshard_after_forward = true;
  /// If not 0, what is resharded after forward is kept for backward by so many ranks, each a part of it.
  int reshard_size = 0;
  /// The next unit is gathered while one runs, unless kMostUnsharded are unsharded already.
  bool forward_prefetch = false;
  bool backward_prefetch = false;
  /// Gradient accumulation: the gradients of all units wait unsharded for the last micro-batch.
  bool accumulates = false;
  /// Activation checkpointing: a unit runs again in backward, and the units inside it with it, whose
  /// gradients are reduced at the end of backward only.
  bool recompute = false;
};

/// Goes through a step as unit.cpp does it, of the buffers whose parameters are no views of the shard: every
/// unit runs once, in the order given.
///
/// Forward: a unit gathers its parameters, runs, and frees them, or all but a part of them, the root not
/// before the end of backward.
/// Backward: a unit is gathered while the one behind it is still there, for the gradient that starts the one
/// ends the other; its gradients are copied into a flat buffer, which waits for its reduce-scatter with at
/// most kMaxReducing others. Gradients of the root, and of units around others, come in until its last
/// inner unit is done.
/// Autocast's copies of a unit's parameters are there from its forward with grad, which is the second one of
/// a unit that runs again, until its gradients are complete.
///
/// What a unit computes in front of those inside it, between them, or behind them is not known here: whether
/// one is freed before the next is gathered, and whose gradients are complete first. So the most of all these
/// ways is taken, of each number by itself. A step holds no more, and at times a block or
/// two less.
StepMemory memory_of_step(const StepUnit& root, const StepOptions& options);

}  // namespace accel
