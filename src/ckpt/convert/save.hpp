#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/plan/output_plan.hpp"
#include "ckpt/read/checkpoint.hpp"
#include "ckpt/read/layout_parts.hpp"
#include "ckpt/tensor/dtype.hpp"

namespace accel::ckpt {

/// The forms of a checkpoint that Accelerate has.
enum class SaveType { kFull, kLocal, kSharded };

struct SaveOptions {
  SaveType type = SaveType::kFull;
  int ranks = 1;
  int index = 0;               ///< The number in Accelerate's names, for programs with several models.
  std::optional<DType> dtype;  ///< The dtype to which a model's floating-point tensors are converted.
  bool tensors_only = false;   ///< Leave out objects.
  std::string root;            ///< The keys above the tensors; see Selection::root.
  /// Tensors that are tied to another one, in addition to those that the source records: names in the source.
  std::map<std::string, std::string> tied;
};

/// A checkpoint to be written under Accelerate's names (`pytorch_model_fsdp.bin`, `optimizer_0/`, ...).
struct SavePlan {
  OutputPlan output;
  bool optimizer = false;
  std::string folder;                 ///< Folder of a sharded checkpoint in the output directory; else empty.
  std::vector<std::string> left_out;  ///< Names of entries that are left out.
  std::vector<LayoutPart> parts_left_out;  ///< The entries of `left_out`, counted.
  OutputState state;
  /// Whether a name in the directory of the output is a file of an earlier output of this form.
  std::function<bool(std::string_view name)> belongs;
};

/// Plans the weights of `source`, or the optimizer if that is all it holds, as a checkpoint of another form.
/// The root key (`model`, `optimizer`) is left out of full and local checkpoints and added to sharded ones.
/// What stands beside the weights is left out. Tied tensors, as far as the source or SaveOptions::tied says
/// that they are tied, share their storage in full and local checkpoints.
///
/// Throws Error: kUsage for options that exclude each other; kMissing if the source is empty; kFailure for
/// what the form has no place for.
[[nodiscard]] SavePlan plan_save(Checkpoint& source, const SaveOptions& options);

}  // namespace accel::ckpt
