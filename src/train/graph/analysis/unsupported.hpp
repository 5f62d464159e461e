#pragma once

#include <torch/csrc/jit/api/module.h>

#include <string>
#include <unordered_set>
#include <vector>

namespace accel::train {

/// Throws an Error of kind kUsage that names the module if the model has something that would silently run in
/// another way than in Python, or not at all:
/// - forward hooks or pre-hooks of the model or of one of `units` (paths): those of a unit would read its
///   parameters while they are not gathered, and those of the model are not called
/// - a lookup with max_norm: scripting leaves out its renormalization, and tracing records one that changes
///   the table in place
/// - `torch.jit.fork`: units gather on the thread that runs the model
/// - no method forward
/// Returns the classes of the blocks `with torch.autocast(...)` that forward may enter, for obey_autocast().
/// Call before methods are rewritten.
std::vector<c10::ClassTypePtr> refuse_unsupported(const torch::jit::Module& root,
                                                  const std::unordered_set<std::string>& units);

}  // namespace accel::train
