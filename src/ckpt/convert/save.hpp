#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/plan/output_plan.hpp"
#include "ckpt/read/checkpoint.hpp"
#include "ckpt/tensor/dtype.hpp"

namespace accel::ckpt {

/// The forms of a checkpoint, as Accelerate has them.
enum class SaveType { kFull, kLocal, kSharded };

struct SaveOptions {
  SaveType type = SaveType::kFull;
  int ranks = 1;
  int index = 0;               ///< The i of Accelerate's names: which of several models.
  std::optional<DType> dtype;  ///< What a model's floating-point tensors become.
  bool tensors_only = false;   ///< Leave out what is no tensor.
};

/// A checkpoint to be written under Accelerate's names (`pytorch_model_fsdp.bin`, `optimizer_0/`, ...).
struct SavePlan {
  OutputPlan output;
  bool optimizer = false;
  std::string folder;                 ///< Of a sharded one, below the output directory; else empty.
  std::vector<std::string> left_out;  ///< Names of objects that tensors_only left out.
  OutputState state;
  /// Whether a name in the output's directory is a file of an earlier output of this form.
  std::function<bool(std::string_view name)> belongs;
};

/// Plans all of `source`, a model or an optimizer, as a checkpoint of another form. The root key (`model`,
/// `optimizer`) is left out of full and local ones and added to sharded ones. Tensors that share their bytes
/// in the source are tied in the output.
///
/// Throws Error: kUsage for options that exclude each other; kMissing if there are no tensors; kFailure for
/// what the form has no place for.
[[nodiscard]] SavePlan plan_save(Checkpoint& source, const SaveOptions& options);

}  // namespace accel::ckpt
