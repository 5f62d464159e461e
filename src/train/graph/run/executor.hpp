#pragma once

namespace accel::train {

/// Makes this thread run TorchScript by the simple executor; settings that are not per thread apply to the
/// process. The profiling executor would compile in the first steps, and does not know that parameters are
/// freed and gathered. The simple executor also leaves autocast to the operators: libtorch's pass that writes
/// casts into graphs has a list of operators of its own. Call on every thread that runs a model, before the
/// run.
void use_simple_executor();

}  // namespace accel::train
