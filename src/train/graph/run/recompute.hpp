#pragma once

#include <ATen/core/ivalue.h>

#include <span>

#include "train/graph/run/run_unit.hpp"
#include "train/graph/run/unit_body.hpp"

namespace accel::train {

/// Activation checkpointing: calls `body` on `self` and `arguments` and saves only the arguments for
/// backward, where hooks.saved_activations() says. Backward recomputes the body between
/// hooks.before_recompute() and after_recompute(), and goes through the recomputation.
///
/// The recomputation has the same random numbers, buffers and attributes as the call. What it changes in them
/// (running statistics) is dropped, because the call has changed them already. Results may be nested in
/// tuples, lists and dicts. Tensors that the body puts into attributes of the module are results, too.
///
/// Errors of kind kUsage, which name the unit: a body that changes an argument in place, or puts a tensor
/// into a list or dict of the arguments, cannot be recomputed; a tensor that it puts into a buffer or a
/// container would lose its gradient.
c10::IValue call_recomputed(const c10::IValue& self, UnitBody body, std::span<const c10::IValue> arguments,
                            UnitHooks& hooks);

}  // namespace accel::train
