#pragma once

#include <ATen/core/function.h>
#include <ATen/core/ivalue.h>

#include <string>
#include <vector>

namespace accel::train {

/// Runs `method` with `inputs`, the first of which is the module object, and returns its result.
///
/// What the TorchScript interpreter throws becomes an Error of kind kFailure of a few lines: the module's
/// path and class, the operator, torch's reason, the dtypes and shapes of the operator's tensors, and the
/// line of the author. `module` is the path of the module object; "(root)" for the model itself. A lookup
/// outside of its table says how many rows the table has. An exception that the model raises itself keeps its
/// message, which stands alone if no line of an author is known, as in the checks that `accel import` writes.
c10::IValue run_method(torch::jit::Function& method, const std::vector<c10::IValue>& inputs,
                       const std::string& module);

}  // namespace accel::train
