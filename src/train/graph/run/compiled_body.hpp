#pragma once

#include <ATen/core/function_schema.h>

#include <memory>
#include <string>

#include "structure/compiled_layers.hpp"
#include "train/graph/run/compiled_code.hpp"
#include "train/graph/run/unit_body.hpp"

namespace accel::train {

/// Returns the body that runs the `code` of `layer` instead of its method forward, whose schema is `forward`.
/// `module` is the path of the layer.
///
/// A call is one function of autograd. It saves the results for backward and the arguments, and no parameter:
/// backward reads the parameters of the module again, so that their memory may be freed in between. The
/// gradients of all parameters arrive at once.
///
/// Arguments are brought into the memory order that the code was compiled for. An argument of another dtype
/// or size than the code's is an Error of kind kUsage, and so is one that requires a gradient which the code
/// does not compute. Throws Error (kUsage) if forward has other arguments or results than the layer.
[[nodiscard]] UnitBody compiled_body(std::shared_ptr<const CompiledCode> code, const CompiledLayer& layer,
                                     const c10::FunctionSchema& forward, std::string module);

}  // namespace accel::train
