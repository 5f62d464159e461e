#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "ckpt/convert/select_tensors.hpp"
#include "ckpt/plan/output_plan.hpp"
#include "ckpt/plan/weight_files.hpp"
#include "ckpt/read/checkpoint.hpp"

namespace accel::ckpt {

struct MergeOptions {
  Selection selection;
  bool keep_tied = false;             ///< Write tied tensors under each of their names.
  bool unsafe_serialization = false;  ///< torch.save's format instead of safetensors.
  std::uint64_t max_shard_bytes = 0;  ///< 0: one file.
};

/// Everything that a merge will do, as a value: it can be printed, tested and executed.
struct MergePlan {
  OutputPlan output;
  OutputState state;  ///< What the output holds; tied items are in it, once for each of their names.
  WeightFiles names;
  bool optimizer = false;             ///< An optimizer's state, not a model's.
  std::vector<std::string> left_out;  ///< Entries of the checkpoint that the output has no place for.
};

/// Plans the merge of all tensors that the options choose into the files that transformers would read:
/// safetensors, or torch.save's format; of an optimizer also `optimizer.json` with all that is no tensor.
/// Reads no more than is needed to know what is tied. Throws Error: kCorrupt if a tensor's pieces leave a
/// hole or overlap, kMissing if there is no tensor, kFailure for what the format cannot hold, and what
/// select_tensors throws.
[[nodiscard]] MergePlan plan_merge(Checkpoint& source, const MergeOptions& options);

/// Throws Error (kCorrupt) if ranks wrote different bytes for what should be one tensor. Reads all copies.
void check_divergence(Checkpoint& source, const MergePlan& plan);

}  // namespace accel::ckpt
