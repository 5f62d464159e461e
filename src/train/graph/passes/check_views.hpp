#pragma once

#include <torch/csrc/jit/api/module.h>

#include "train/graph/passes/part_attention.hpp"

namespace accel::train {

/// Puts kCheckView (run/part_view.hpp) in front of each `view` and `reshape` of what a module returned that
/// may give a part, and kCheckCut in front of each operator that cuts it along a dimension (chunk, split,
/// slice, unflatten, ...), in all methods of `root` and its modules. What is computed from it element by
/// element, as by an activation, is followed, in the same method and in the modules and functions that it
/// calls. A slice that takes everything cuts nothing, nor does an `unflatten` whose first size is -1, the
/// number of heads. Call before methods are rewritten (rewrite.hpp).
void check_views(const torch::jit::Module& root, const GivesPart& gives_part);

}  // namespace accel::train
