#pragma once

#include <c10/core/Device.h>

namespace accel::train {

/// The module that links libtorch's CUDA half and NCCL. It lies beside the program.
inline constexpr const char* kCudaModuleFile = "accel-cuda.so";

/// Loads the module of the machine's accelerator into this process, so that its devices exist, and returns
/// the device with the number `index`. A run on CPU ranks never calls this function: the CUDA libraries would
/// cost each rank over 200 MB of memory. Call it before the first use of any tensor. A build without CUDA,
/// and a number that libtorch does not see, are Errors of kind kFailure.
///
/// In a build for tests, ACCEL_DEVICE_MODULE names another module, which registers a device that libtorch
/// does not know (tests/sim).
c10::Device load_accelerator(int index);

/// Returns the address of the function `name` in that module, or null if load_accelerator() was not called. A
/// module without that function is an Error of kind kFailure.
void* accelerator_symbol(const char* name);

/// Returns what accelerator_symbol() does, or null if the module lacks that function, which not every device
/// needs.
void* optional_accelerator_symbol(const char* name);

}  // namespace accel::train
