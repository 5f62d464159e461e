#pragma once

namespace accel::train {

/// The module with libtorch's CUDA half and NCCL, beside the program.
inline constexpr const char* kCudaModuleFile = "accel-cuda.so";

/// Loads libtorch's CUDA half into this process, so that `cuda` devices exist. A run on CPU ranks never calls
/// it: the CUDA libraries would cost each rank over 200 MB of memory. Call before the first use of any
/// tensor. An Error if this build has no CUDA part, or if libtorch does not see a GPU of that number.
void load_cuda(int device_index);

/// The address of a function in that module, or null if load_cuda() was not called. An Error if the module
/// has no such function.
void* cuda_symbol(const char* name);

}  // namespace accel::train
