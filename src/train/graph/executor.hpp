#pragma once

namespace accel::train {

/// Makes this thread, and for what is not the thread's own this process, run TorchScript by the simple
/// executor: one that profiles and specialises would run the first steps several times over, and does not
/// know that parameters come and go. Nor does it write casts of autocast into graphs, by a list of its own
/// that is not the operators' list. On every thread that runs a model, before it does.
void use_simple_executor();

}  // namespace accel::train
