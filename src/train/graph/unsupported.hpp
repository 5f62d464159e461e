#pragma once

#include <torch/csrc/jit/api/module.h>

#include <string>
#include <unordered_set>

namespace accel::train {

/// Throws an Error of kind kUsage that names the module, if the model has what would silently run otherwise
/// than in Python, or not at all:
/// - forward hooks, or pre-hooks, of the model or of one of `units` (paths): who calls them reads the unit's
///   parameters while it is not gathered, and nobody calls the model's
/// - `with torch.autocast(...)`, unless it switches off what is off anyway: `autocasts` says that it is not
/// - a lookup with max_norm, whose renormalization TorchScript leaves out
/// - `torch.jit.fork`: units gather on the thread that runs the model
/// - no forward at all
/// Call before methods are rewritten.
void refuse_unsupported(const torch::jit::Module& root, const std::unordered_set<std::string>& units,
                        bool autocasts);

}  // namespace accel::train
