#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ckpt/convert/merge.hpp"
#include "ckpt/plan/output_plan.hpp"
#include "ckpt/plan/weight_files.hpp"
#include "ckpt/read/checkpoint.hpp"
#include "ckpt/store/adapter_config.hpp"

namespace accel::ckpt {

/// The merge of an adapter into its base. The plan takes from `source`, which has the tensors of both.
struct AdapterMergePlan {
  std::unique_ptr<Checkpoint> source;
  OutputPlan output;
  OutputState state;  ///< The tensors of the base, in its order and under its names.
  WeightFiles names;
  std::size_t updated = 0;   ///< The tensors to which a product of the adapter is added.
  std::size_t replaced = 0;  ///< The tensors in whose place the adapter has others, such as modules_to_save.
};

/// Plans files with the tensors of `base`, to which `adapter` is added as PEFT's merge_and_unload() does it
/// for an adapter that PeftModel.from_pretrained has loaded: its values are converted to float32, their
/// product is computed and scaled in float32, and the sum gets the dtype of the base. `merged` is the plan of
/// plan_merge for the adapter, which gives its tensors the names of PEFT. The files are those of the base; if
/// `max_shard_bytes` is not 0, they are split anew. They have the `__metadata__` of the base. Of the tensors,
/// those that replace others are read, and those that change an embedding and its head. Throws Error
/// (kFailure) unless `base` is safetensors, each tensor of the adapter has its own place in the base, shapes
/// and ranks fit, and what changes one of two tied tensors changes the other alike; (kCorrupt) if a number
/// that replaces another is not finite.
[[nodiscard]] AdapterMergePlan plan_adapter_merge(Checkpoint& base, Checkpoint& adapter,
                                                  const MergePlan& merged, const AdapterConfig& config,
                                                  std::uint64_t max_shard_bytes);

}  // namespace accel::ckpt
