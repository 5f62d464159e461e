#pragma once

#include <torch/csrc/jit/api/module.h>

namespace accel::train {

/// Puts kCheckView (run/part_view.hpp) in front of each `view` and `reshape` of what a call of a module
/// returned, and kCheckCut in front of each operator that cuts it along a dimension (chunk, split, slice,
/// unflatten, ...), in all methods of `root` and its modules. A slice that takes everything cuts nothing, nor
/// does an `unflatten` whose first size is -1, the number of heads. Call before methods are rewritten
/// (rewrite.hpp).
void check_views(const torch::jit::Module& root);

}  // namespace accel::train
