#pragma once

#include <torch/csrc/jit/api/module.h>

namespace accel::train {

/// Copies every method of `module`'s class to a new method `__accel_<name>` and makes the original body a
/// single call of accel::run_unit, so that every call of the method, from any compiled graph, passes through
/// the hooks.
///
/// Instances that share the class share the rewrite. A class that is rewritten already is left unchanged.
/// Call before the first run of any method of the model: compiled graphs are cached and cannot be reset.
void rewrite_methods(const torch::jit::Module& module);

}  // namespace accel::train
