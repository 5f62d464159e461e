#pragma once

#include <torch/csrc/jit/api/module.h>

#include <string>
#include <unordered_set>

namespace accel::train {

/// The parameters that are read across units: a module outside a unit reads them through the unit, as in
/// `self.unit.weight`. No call of the unit precedes such a read, so that these parameters must belong to the
/// root. The same holds for the parameters of a module inside a unit that is called from outside the unit,
/// unless that module is a unit itself, which gathers its parameters when it is called.
///
/// The reads are chains of GetAttr in graphs that start at `self` and pass through one of `units`, which are
/// paths of modules. Call before rewrite_methods().
std::unordered_set<const at::TensorImpl*> cross_unit_reads(const torch::jit::Module& root,
                                                           const std::unordered_set<std::string>& units);

}  // namespace accel::train
