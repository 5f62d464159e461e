#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/fsdp/flat_layout.hpp"
#include "train/fsdp/unit_plan.hpp"
#include "train/model/structure.hpp"

namespace accel::train {

/// One flat buffer of a unit: its parameters of one dtype and requires_grad; ignored ones apart.
struct BufferPlan {
  std::string dtype;  ///< "float32"
  std::int64_t item_bytes = 0;
  bool trainable = true;
  bool replicated = false;  ///< Of ignored parameters: every rank has all of it, as if it were the only one.
  FlatLayout layout;
  std::vector<std::size_t> parameters;  ///< Indices into ModelStructure::parameters, in layout order.

  /// Of the whole buffer, padding included; of one rank's part of it.
  [[nodiscard]] std::uint64_t bytes() const;
  [[nodiscard]] std::uint64_t shard_bytes() const;
};

/// The flat buffers of a unit over the ranks of `mesh`, in the order in which their first parameters occur. A
/// parameter whose name contains one of `no_decay` gets no weight decay.
///
/// Throws Error (kUsage) for a trainable parameter of another dtype than float32.
std::vector<BufferPlan> plan_buffers(const ModelStructure& model, const UnitPlan& unit,
                                     const std::vector<std::string>& no_decay, const Mesh& mesh);

}  // namespace accel::train
