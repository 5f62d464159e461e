#pragma once

#include <string>
#include <vector>

#include "ckpt/plan/output_plan.hpp"
#include "ckpt/read/checkpoint.hpp"

namespace accel::ckpt {

/// What to do about parameters and buffers that the checkpoint does not have: refuse, or keep the model's.
enum class Missing { kRefuse, kKeep };

/// A TorchScript file with other weights.
struct TorchScriptPlan {
  OutputFile file;
  std::vector<std::string> loaded;  ///< Parameters and buffers that get the values of the checkpoint.
  std::vector<std::string> kept;    ///< Parameters and buffers that keep the values of the model.
};

/// Plans the model file `name`. It is `model`, an open file of TorchScript or of torch.export, with the
/// tensors of `state` as its parameters and buffers. Everything else (code, constants, attributes, extra
/// files) stays as it is. A tensor that the model has on the meta device comes onto the CPU. Tensors are
/// converted to the dtypes of the model. A storage that is one dense tensor, under one name or several, is
/// written from the checkpoint. A storage that holds several tensors, or other bytes too, is assembled in
/// memory, for which `source` is read. Records that stay as they are are read to check their CRCs. The
/// buffers `non_persistent` are in no state dict, and keep their values.
///
/// Throws Error: kFailure if names or shapes do not fit (the error lists all of them), if `state` is an
/// adapter for which the model has no parameters, if two tensors disagree about bytes that the model shares,
/// or if the storages to be assembled are too large; kCorrupt if the model contradicts itself.
[[nodiscard]] TorchScriptPlan plan_torchscript(std::string name, Checkpoint& model, const OutputState& state,
                                               Checkpoint& source, Missing missing,
                                               const std::vector<std::string>& non_persistent = {});

}  // namespace accel::ckpt
