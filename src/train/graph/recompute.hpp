#pragma once

#include <ATen/core/function.h>
#include <ATen/core/ivalue.h>

#include <span>

#include "train/graph/run_unit.hpp"

namespace accel::train {

/// Calls `body` on `self` and `arguments` without keeping what its backward needs but the arguments:
/// activation checkpointing; they are kept where hooks.saved_activations() says. Backward runs the body once
/// more, between hooks.before_recompute() and after_recompute(), and goes through that run.
///
/// The second run sees the same random numbers and the same buffers and attributes as the first, and what it
/// changes of these (running statistics) is forgotten, as the first has changed them already. Results may be
/// nested in tuples, lists and dicts; of a result that holds no tensor nothing goes backward. What the body
/// puts into attributes of the module is a result, too. A body that changes an argument in place, or puts a
/// tensor into a list or dict of the arguments, cannot be run again, and of what it puts into a buffer or a
/// container no gradient would come back: Errors of kind kUsage that name the unit.
c10::IValue call_recomputed(const c10::IValue& self, torch::jit::Function& body,
                            std::span<const c10::IValue> arguments, UnitHooks& hooks);

}  // namespace accel::train
