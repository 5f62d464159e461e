#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/config/config.hpp"
#include "plan/flat_layout.hpp"
#include "plan/unit_plan.hpp"
#include "structure/structure.hpp"

namespace accel {

/// One flat buffer of a unit: its parameters of one dtype and requires_grad; ignored ones apart.
struct BufferPlan {
  std::string dtype;               ///< "float32": of the shard.
  std::string compute_dtype;       ///< Of the unsharded parameters,
  std::string reduce_dtype;        ///< and of their gradients.
  std::int64_t item_bytes = 0;     ///< Of an element of the shard,
  std::int64_t compute_bytes = 0;  ///< of the unsharded parameters,
  std::int64_t reduce_bytes = 0;   ///< and of their gradients.
  bool trainable = true;
  bool replicated = false;  ///< Of ignored parameters: every rank has all of it, as if it were the only one.
  FlatLayout layout;
  std::vector<std::size_t> parameters;  ///< Indices into ModelStructure::parameters, in layout order.

  /// Of the unsharded parameters, padding included; of their gradient; of one rank's part of the parameters.
  [[nodiscard]] std::uint64_t bytes() const;
  [[nodiscard]] std::uint64_t gradient_bytes() const;
  [[nodiscard]] std::uint64_t shard_bytes() const;
  /// Whether the shard is all there is, and the unsharded parameters are views of it.
  [[nodiscard]] bool is_alias() const { return layout.mesh.shards == 1 && compute_dtype == dtype; }
};

/// Whether the module is one of torch's batch norms, which FullyShardedDataParallel leaves in float32.
[[nodiscard]] bool is_batch_norm(const ModuleInfo& module);

/// The flat buffers of a unit over the ranks of `mesh`, in the order in which their first parameters occur. A
/// parameter whose name contains one of `no_decay` gets no weight decay. In mixed precision trainable
/// parameters of less than float32 have a shard of float32. Batch norms compute in float32 in version 1.
///
/// Throws Error (kUsage) for a trainable parameter of another dtype than float32 without mixed precision.
std::vector<BufferPlan> plan_buffers(const ModelStructure& model, const UnitPlan& unit,
                                     const std::vector<std::string>& no_decay, const Mesh& mesh,
                                     const core::PrecisionConfig& precision = {});

/// Trainable parameters that have a shard of float32 and are of less: what to warn of.
std::vector<std::string> widened_parameters(const ModelStructure& model,
                                            const core::PrecisionConfig& precision);

}  // namespace accel
