#pragma once

#include <torch/csrc/jit/api/module.h>

namespace accel::train {

/// Puts kCheckView (run/part_view.hpp) in front of each `view` and `reshape` of what a call of a module
/// returned, in all methods of `root` and its modules. Call before methods are rewritten (rewrite.hpp).
void check_views(const torch::jit::Module& root);

}  // namespace accel::train
