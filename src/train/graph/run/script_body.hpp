#pragma once

#include <ATen/core/function.h>

#include <string>

#include "train/graph/run/unit_body.hpp"

namespace accel::train {

/// Returns the body that runs `method`, which must outlive it, by TorchScript's interpreter.
///
/// What the TorchScript interpreter throws becomes an Error of kind kFailure of a few lines: the module's
/// path and class, the operator, torch's reason, the dtypes and shapes of the operator's tensors, and the
/// line of the author. `module` is the path of the module object; "(root)" for the model itself. A lookup
/// outside of its table says how many rows the table has. An exception that the model raises itself keeps its
/// message, which stands alone if no line of an author is known, as in the checks that `accel import` writes.
UnitBody script_body(torch::jit::Function& method, std::string module);

}  // namespace accel::train
