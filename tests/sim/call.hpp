#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/stack.h>

namespace accel::sim {

/// Runs the kernel of the CPU on the memory of the arguments, as work of the current stream of their device,
/// and leaves the results on the stack, as tensors of the device.
void run_on_memory(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace accel::sim
