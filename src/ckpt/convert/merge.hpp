#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/convert/select_tensors.hpp"
#include "ckpt/plan/output_plan.hpp"
#include "ckpt/plan/weight_files.hpp"
#include "ckpt/read/checkpoint.hpp"
#include "ckpt/read/layout_parts.hpp"

namespace accel::ckpt {

struct MergeOptions {
  Selection selection;
  bool keep_tied = false;   ///< Write tied tensors under each of their names.
  bool drop_equal = false;  ///< Take equal tensors as tied where the source cannot tell; see ties.hpp.
  bool unsafe_serialization = false;  ///< Write torch.save's format instead of safetensors.
  std::uint64_t max_shard_bytes = 0;  ///< The largest size of a shard; 0 for a single file.
  /// Whether the tensors are an adapter, which gets the names of PEFT, one file, and each tied tensor under
  /// each of its names. If absent, are_adapter() tells.
  std::optional<bool> is_adapter = {};
};

/// Everything that a merge will write, as a value that can be printed, tested and executed.
struct MergePlan {
  OutputPlan output;
  OutputState state;  ///< The contents of the output; a tied item is in it once for each of its names.
  WeightFiles names;
  bool optimizer = false;                  ///< Whether this is the state of an optimizer, not of a model.
  std::vector<std::string> left_out;       ///< Entries of the checkpoint that the output has no place for.
  std::vector<LayoutPart> parts_left_out;  ///< The entries of `left_out`, counted.
};

/// Plans the merge of all tensors that the options select into files that transformers or PEFT read:
/// safetensors, or torch.save's format. The objects of an optimizer go into `optimizer.json`. Tensor data is
/// read only to find out what is tied. Throws Error: kCorrupt if the pieces of a tensor leave a hole or
/// overlap, kMissing if there is no tensor, kFailure for what the format cannot hold, kUsage for shards of an
/// adapter, and for keep_tied with drop_equal; and what select_tensors throws.
[[nodiscard]] MergePlan plan_merge(Checkpoint& source, const MergeOptions& options);

/// Throws Error (kCorrupt) if ranks wrote different bytes for the same tensor. Reads all copies.
void check_divergence(Checkpoint& source, const MergePlan& plan);

}  // namespace accel::ckpt
