#pragma once

#include <ATen/core/function.h>
#include <ATen/core/ivalue.h>

#include <span>

#include "train/graph/run_unit.hpp"

namespace accel::train {

/// Calls `body` on `self` and `arguments` without keeping what its backward needs but the arguments:
/// activation checkpointing; they are kept where hooks.kept() says. Backward runs the body once more, between
/// hooks.before_recompute() and after_recompute(), and goes through that run.
///
/// The second run sees the same random numbers as the first, and what it changes of the module's buffers
/// (running statistics) is forgotten, as the first has changed them already. Results may be nested in tuples,
/// lists and dicts; of a result that holds no tensor nothing goes backward. A body that changes an argument
/// in place cannot be run again: an Error of kind kUsage that names the unit.
c10::IValue call_recomputed(const c10::IValue& self, torch::jit::Function& body,
                            std::span<const c10::IValue> arguments, UnitHooks& hooks);

}  // namespace accel::train
