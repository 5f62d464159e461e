#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/config/config.hpp"
#include "plan/layout/flat_layout.hpp"
#include "plan/layout/optimizer_plan.hpp"
#include "plan/units/unit_plan.hpp"
#include "structure/structure.hpp"

namespace accel {

/// One flat buffer of a unit: its parameters of one dtype and one requires_grad. Replicated parameters have
/// buffers of their own, and so have those that tensor parallelism cuts or that are gathered in float8.
struct BufferPlan {
  std::string dtype;          ///< Dtype of the shard, such as "float32".
  std::string compute_dtype;  ///< Dtype of the parameters and of their gradients, as autograd has them.
  /// Dtype of what is gathered: that of the parameters, or "float8_e4m3fn" if they have no memory and their
  /// linears multiply by the gathered bytes.
  std::string gather_dtype;
  std::string reduce_dtype;        ///< Dtype of the unsharded gradients.
  std::int64_t item_bytes = 0;     ///< Bytes of an element of the shard.
  std::int64_t compute_bytes = 0;  ///< Bytes of an element of a parameter's gradient.
  std::int64_t gather_bytes = 0;   ///< Bytes of an element of the unsharded parameters.
  std::int64_t reduce_bytes = 0;   ///< Bytes of an element of the unsharded gradients.
  bool trainable = true;
  bool replicated = false;  ///< Every rank has all of the buffer, as if it were the only rank.
  bool tensor_cut = false;  ///< Tensor parallelism cuts the parameters.
  FlatLayout layout;
  std::vector<std::size_t> parameters;  ///< Indices into ModelStructure::parameters, in layout order.

  [[nodiscard]] bool gathers_float8() const { return gather_dtype != compute_dtype; }
  /// Bytes of the unsharded parameters, of their gradient, and of the shard of one rank, with padding.
  [[nodiscard]] std::uint64_t bytes() const;
  [[nodiscard]] std::uint64_t gradient_bytes() const;
  [[nodiscard]] std::uint64_t shard_bytes() const;
  /// Whether there is one shard and the unsharded parameters are views of it.
  [[nodiscard]] bool is_alias() const { return layout.mesh.shards() == 1 && gather_dtype == dtype; }
};

/// Whether the module is one of torch's batch norms, which FullyShardedDataParallel leaves in float32.
[[nodiscard]] bool is_batch_norm(const ModuleInfo& module);

/// The flat buffers of a unit over the ranks of `mesh`, in the order in which their first parameters occur.
/// In mixed precision trainable 16-bit parameters have a float32 shard. Batch norms compute in float32 in
/// FSDP version 1.
///
/// Throws Error (kUsage) for a trainable parameter of another dtype than float32 without mixed precision.
std::vector<BufferPlan> plan_buffers(const ModelStructure& model, const UnitPlan& unit,
                                     const OptimizerPlan& optimizer, const Mesh& mesh,
                                     const config::PrecisionConfig& precision = {});

/// The trainable 16-bit parameters that have a float32 shard, for a warning.
std::vector<std::string> widened_parameters(const ModelStructure& model,
                                            const config::PrecisionConfig& precision);

}  // namespace accel
