#pragma once

#include <string>
#include <vector>

#include "ckpt/plan/output_plan.hpp"
#include "ckpt/read/checkpoint.hpp"

namespace accel::ckpt {

/// What happens to parameters and buffers that the checkpoint does not have.
enum class Missing { kRefuse, kKeep };

/// A TorchScript file with other weights.
struct TorchScriptPlan {
  OutputFile file;
  std::vector<std::string> loaded;  ///< Parameters and buffers that get the checkpoint's values.
  std::vector<std::string> kept;    ///< Those that keep the model's.
};

/// Plans the TorchScript file `name`: `model`, a TorchScript file that is open, with the tensors of `state`
/// as its parameters and buffers, and everything else (code, constants, attributes, extra files) as it is.
/// Tensors are converted to the model's dtypes. A storage that is one dense tensor, under one name or
/// several, is written from the checkpoint; one that holds several tensors, or more than them, is put
/// together in memory, for which `source` is read. Also read are the records that are kept, to check their
/// CRCs.
///
/// Throws Error: kFailure if names or shapes do not fit, which lists all that do not; if two tensors disagree
/// about bytes that the model shares; or if storages to be put together are too large. kCorrupt if the model
/// contradicts itself.
[[nodiscard]] TorchScriptPlan plan_torchscript(std::string name, Checkpoint& model, const OutputState& state,
                                               Checkpoint& source, Missing missing);

}  // namespace accel::ckpt
