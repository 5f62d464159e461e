#pragma once

#include <torch/csrc/jit/api/module.h>

namespace accel::train {

/// Copies every method of `module`'s class to a new method `__accel_<name>` and makes the original body a
/// single call of accel::run_unit, so that whoever calls the method, compiled into whatever graph, passes
/// through the hooks.
///
/// Instances that share the class share the rewrite; a class already rewritten is left alone. Call before the
/// first run of any method of the model: compiled graphs are cached and cannot be reset.
void rewrite_methods(const torch::jit::Module& module);

}  // namespace accel::train
