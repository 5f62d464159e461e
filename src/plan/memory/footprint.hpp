#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <unordered_set>
#include <vector>

#include "core/config/config.hpp"
#include "plan/layout/optimizer_plan.hpp"
#include "plan/units/unit_plan.hpp"
#include "ranks/mesh.hpp"
#include "structure/structure.hpp"

namespace accel {

struct FootprintOptions {
  Mesh mesh;
  bool reshard_after_forward = true;
  int reshard_size = 0;  ///< Ranks of a reshard group; 0 if units are resharded to all ranks.
  bool forward_prefetch = false;
  bool backward_prefetch = false;
  int prefetch_depth = 1;
  bool activation_checkpointing = false;  ///< Units, and the units inside them, are recomputed in backward.
  std::int64_t micro_batches = 1;         ///< The number of gradient accumulation steps.
  /// Shards, their gradients and the optimizer's state are offloaded to the host.
  bool stored_on_host = false;
  /// Memory of gathered parameters and of flat gradients is kept from step to step, as on CPU ranks.
  bool keeps_blocks = false;
  OptimizerPlan optimizer;
  config::PrecisionConfig precision;
  /// Names of parameters that autocast does not copy (autocast_copies.hpp).
  std::unordered_set<std::string> names_without_cast;
  /// Paths of the layers that run compiled code: the gradients of all their parameters arrive at once.
  std::set<std::string> compiled_layers;
  config::DdpConfig ddp;               ///< Its hook applies with one shard and several ranks.
  std::uint64_t replicated_bytes = 0;  ///< Bytes of the model's own buffers, which every rank holds.
  std::uint64_t persistent_bytes = 0;  ///< Bytes of the model's own buffers that a checkpoint has.
  bool adapter_only = false;           ///< A checkpoint has no frozen parameters.
};

/// What one unit costs a rank. Bytes include the padding of shards, so that they are the same on all ranks.
struct UnitFootprint {
  std::string module;  ///< The path; empty for the root.
  std::string class_name;
  std::size_t parameters = 0;        ///< Number of parameters; tied parameters count once.
  std::int64_t elements = 0;         ///< Elements of all parameters.
  std::int64_t trainable = 0;        ///< Elements of trainable parameters.
  std::int64_t padded_elements = 0;  ///< Elements of the flat buffers.
  std::uint64_t shard_bytes = 0;
  std::uint64_t gradient_bytes = 0;
  std::uint64_t optimizer_bytes = 0;
  std::uint64_t unsharded_bytes = 0;   ///< Gathered parameters; with one shard they may be the shard itself.
  std::uint64_t replicated_bytes = 0;  ///< Replicated parameters, which every rank holds.
  /// Gradients and optimizer state of replicated parameters. gradient_bytes and optimizer_bytes include them.
  std::uint64_t replicated_training_bytes = 0;
  std::uint64_t cast_bytes = 0;    ///< Copies that autocast makes of the parameters.
  std::uint64_t gather_bytes = 0;  ///< Bytes sent a step by all-gathers.
  std::uint64_t reduce_bytes = 0;  ///< Bytes sent a step by reduce-scatters.
  /// Bytes sent a step by all-reduces over the replicas, or all data ranks.
  std::uint64_t average_bytes = 0;
};

/// The memory that a rank needs for a step, without activations (what forward saves for backward),
/// temporaries of operators, batches, and libtorch itself.
struct MemoryFootprint {
  std::uint64_t shard_bytes = 0;
  std::uint64_t optimizer_bytes = 0;
  std::uint64_t gradient_bytes = 0;  ///< Gradients of the shards, as the optimizer reads them.
  /// A parameter's gradient that has come but is not yet copied to the flat gradient, in addition to
  /// gradient_bytes. The gradient of a parameter with several names counts three times, because autograd adds
  /// two gradients up into a third, unless one comes out of an autocast copy. A reduced 16-bit gradient
  /// that is being copied into float32 counts instead if it is larger.
  std::uint64_t gradient_temp_bytes = 0;
  /// Autocast's copies of parameters, in addition to the gradients at the same moment. The copies exist
  /// before the gradients, so that this is less than all copies, and 0 if they are freed before most
  /// gradients have come.
  std::uint64_t cast_bytes = 0;
  std::uint64_t unsharded_parameter_bytes = 0;  ///< The most unsharded parameters at once.
  std::uint64_t unsharded_gradient_bytes = 0;   ///< The most unsharded gradients at once.
  std::uint64_t group_shard_bytes = 0;          ///< Shards of reshard groups between forward and backward.
  /// Blocks for unsharded parameters, unsharded gradients and group shards, reused only for equal sizes.
  std::uint64_t unsharded_bytes = 0;
  std::size_t unsharded_units = 0;     ///< The most unsharded units at once.
  std::uint64_t replicated_bytes = 0;  ///< Buffers of the model, and replicated parameters.
  /// Shards, their gradients and the optimizer's state, if they are offloaded to the host; those of
  /// replicated parameters never are. libtorch's pinned memory comes in powers of two, and the rest of such a
  /// block is not counted.
  std::uint64_t host_bytes = 0;
  /// The most bytes, with offloading, on the GPU of shards and gradients that are being copied from or to the
  /// host.
  std::uint64_t copy_bytes = 0;
  /// The state of communication hooks from step to step, and the most bytes of copies of gradients that are
  /// being reduced.
  std::uint64_t hook_bytes = 0;
  /// The sum of all numbers without host_bytes: the most memory, which a rank needs at the end of backward.
  std::uint64_t total_bytes = 0;
};

/// The cost of all units on one mesh.
struct Footprint {
  Mesh mesh;
  std::vector<UnitFootprint> units;
  MemoryFootprint memory;
  std::uint64_t gather_bytes = 0;           ///< Bytes that a rank sends in all-gathers in a step.
  std::uint64_t reduce_bytes = 0;           ///< Bytes that a rank sends in reduce-scatters in a step.
  std::uint64_t average_bytes = 0;          ///< Bytes that a rank sends in all-reduces in a step.
  std::uint64_t checkpoint_bytes = 0;       ///< Tensors of model and optimizer that all ranks write.
  std::uint64_t checkpoint_rank_bytes = 0;  ///< What the rank with the most writes.
};

/// Computes the footprint. Reads nothing, and allocates nothing that grows with the model's elements. The
/// time does not depend on the world size except for one counter per rank.
///
/// Traffic is that of a ring: each of N ranks sends n * (N - 1) / N bytes of a buffer of n bytes, and twice
/// that in an all-reduce. In a micro-batch a buffer is gathered each time its unit runs, and once more for
/// backward if the unit was resharded. If there is a reshard group, all gathers but the first are over that
/// group. Once a step gradients are reduced, and averaged over the replicas, or over all data ranks for
/// replicated parameters. A communication hook sends its own form of them. The few numbers of the loss and
/// the gradient norm are not counted.
///
/// Throws Error as plan_buffers() does, and kCorrupt if a size overflows.
Footprint footprint_of(const ModelStructure& model, const std::vector<UnitPlan>& units,
                       const FootprintOptions& options);

}  // namespace accel
