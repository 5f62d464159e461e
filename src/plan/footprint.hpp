#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

#include "core/config/config.hpp"
#include "plan/unit_plan.hpp"
#include "structure/structure.hpp"

namespace accel {

struct FootprintOptions {
  int world_size = 1;
  int replicas = 1;  ///< Copies of the model, each sharded over world_size / replicas ranks.
  bool reshard_after_forward = true;
  int reshard_size = 0;  ///< So many ranks keep a unit for backward; 0: as many as shard it.
  bool forward_prefetch = false;
  bool backward_prefetch = false;
  bool activation_checkpointing = false;  ///< Units run again in backward, and those inside them with them.
  std::int64_t micro_batches = 1;         ///< Gradient accumulation.
  /// Shards, their gradients and the optimizer's state lie in the host's memory, and not on the GPU.
  bool stored_on_host = false;
  /// As ranks on CPUs do: memory of gathered parameters and of flat gradients is kept from step to step.
  bool keeps_blocks = false;
  int optimizer_moments = 2;  ///< State tensors of a parameter, as large as it: 2 of AdamW.
  std::vector<std::string> no_decay;
  core::PrecisionConfig precision;
  /// Names of parameters that autocast does not copy (see autocast_copies.hpp).
  std::unordered_set<std::string> names_without_cast;
  core::DdpConfig ddp;                 ///< Its hook, if each rank of several has the whole model.
  std::uint64_t replicated_bytes = 0;  ///< Of the model's own buffers, which every rank holds.
  std::uint64_t persistent_bytes = 0;  ///< Of those that a checkpoint has.
};

/// What one unit costs a rank. Bytes of the shard with its padding, which is the same on all ranks.
struct UnitFootprint {
  std::string module;  ///< Empty for the root.
  std::string class_name;
  std::size_t parameters = 0;        ///< Tensors; tied ones once.
  std::int64_t elements = 0;         ///< Of all of them.
  std::int64_t trainable = 0;        ///< Elements that have a gradient.
  std::int64_t padded_elements = 0;  ///< Of the flat buffers.
  std::uint64_t shard_bytes = 0;
  std::uint64_t gradient_bytes = 0;
  std::uint64_t optimizer_bytes = 0;
  std::uint64_t unsharded_bytes = 0;   ///< Parameters, gathered; on one rank they are the shard.
  std::uint64_t replicated_bytes = 0;  ///< Of replicated parameters: every rank holds all of them.
  /// Of the gradients and optimizer state of replicated parameters, which are replicated, too, and part of
  /// the bytes above.
  std::uint64_t replicated_training_bytes = 0;
  std::uint64_t cast_bytes = 0;     ///< Of the copies that autocast makes of its parameters.
  std::uint64_t gather_bytes = 0;   ///< Sent a step by all-gathers.
  std::uint64_t reduce_bytes = 0;   ///< Sent a step by reduce-scatters.
  std::uint64_t average_bytes = 0;  ///< Sent a step by all-reduces over the replicas, or over all ranks.
};

/// What a rank needs for a step, without activations: what forward saves for backward, the temporaries of
/// operators, batches, and libtorch itself.
struct MemoryFootprint {
  std::uint64_t shard_bytes = 0;
  std::uint64_t optimizer_bytes = 0;
  std::uint64_t gradient_bytes = 0;  ///< Of the shard, as the optimizer gets them.
  /// What comes on top of that when a parameter's gradient is there, but not yet copied to the flat one. One
  /// with several names counts three times: autograd adds two up into another, but if one comes out of an
  /// autocast copy. Or, if that is more, a reduced gradient in 16 bits that is being copied into float32.
  std::uint64_t arriving_gradient_bytes = 0;
  /// What autocast's copies of parameters take beyond both. They are there before the gradients, so that this
  /// is less than all of them, and nothing where they are gone before most gradients have come.
  std::uint64_t cast_bytes = 0;
  std::uint64_t unsharded_parameter_bytes = 0;  ///< At once, at most.
  std::uint64_t unsharded_gradient_bytes = 0;   ///< At once, at most.
  std::uint64_t group_shard_bytes = 0;          ///< By a reshard group, between forward and backward.
  /// For these three, in blocks that are used again for buffers of the same size.
  std::uint64_t unsharded_bytes = 0;
  std::size_t unsharded_units = 0;     ///< At once, at most.
  std::uint64_t replicated_bytes = 0;  ///< Buffers of the model, and ignored parameters.
  /// Of the first three, if they lie in the host's memory, which those of ignored parameters never do; what
  /// libtorch's pinned memory, which comes in powers of two, takes beyond them is not counted.
  std::uint64_t host_bytes = 0;
  /// Then: of shards and their gradients on the GPU on the way from and to there, at most.
  std::uint64_t copy_bytes = 0;
  /// Of a communication hook: what it keeps from step to step, and what it has at most of gradients that are
  /// under way, beside them.
  std::uint64_t hook_bytes = 0;
  /// All of them at the end of a backward, which is the most there is; without host_bytes.
  std::uint64_t total_bytes = 0;
};

/// What all units cost at one world size.
struct Footprint {
  int world_size = 1;
  int replicas = 1;
  std::vector<UnitFootprint> units;
  MemoryFootprint memory;
  std::uint64_t gather_bytes = 0;           ///< Sent by a rank in a step.
  std::uint64_t reduce_bytes = 0;           ///< Sent by a rank in a step.
  std::uint64_t average_bytes = 0;          ///< Sent by a rank in a step.
  std::uint64_t checkpoint_bytes = 0;       ///< Tensors of the model and the optimizer, by all ranks.
  std::uint64_t checkpoint_rank_bytes = 0;  ///< By the rank that writes most.
};

/// Pure arithmetic, with nothing read and nothing allocated that grows with the model's elements; the time
/// does not depend on the world size but for one counter a rank.
///
/// Traffic is that of a ring: of a buffer of n bytes each of N ranks sends n * (N - 1) / N, in an all-reduce
/// twice that. In a micro-batch a buffer is gathered each time its unit runs, and once more for backward if
/// the unit was resharded, all but the first time from its reshard group if there is one; gradients are
/// reduced, and averaged over the replicas, or over all ranks if they are ignored parameters', once a step; a
/// communication hook sends what it makes of them.
/// The few numbers of the loss and the gradient norm are left out.
///
/// Throws Error as plan_buffers() does, and kCorrupt if a size overflows.
Footprint footprint_of(const ModelStructure& model, const std::vector<UnitPlan>& units,
                       const FootprintOptions& options);

}  // namespace accel
