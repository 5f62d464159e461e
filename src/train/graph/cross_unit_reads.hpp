#pragma once

#include <torch/csrc/jit/api/module.h>

#include <string>
#include <unordered_set>

namespace accel::train {

/// The parameters that some module reads past the boundary of a wrapped unit, as in `self.unit.weight`
/// outside the unit: no call of the unit announces such a read, so these parameters must belong to the root.
/// So must those of a module inside a unit that is called from outside it, but not of units: these announce
/// their calls themselves.
///
/// Found in the graphs, as chains of GetAttr that start at `self` and pass through one of `units`, which are
/// paths of modules. Call before rewrite_methods.
std::unordered_set<const at::TensorImpl*> cross_unit_reads(const torch::jit::Module& root,
                                                           const std::unordered_set<std::string>& units);

}  // namespace accel::train
