#pragma once

namespace accel::train {

/// The module that links libtorch's CUDA half and NCCL. It lies beside the program.
inline constexpr const char* kCudaModuleFile = "accel-cuda.so";

/// Loads libtorch's CUDA half into this process, so that `cuda` devices exist. A run on CPU ranks never calls
/// this function: the CUDA libraries would cost each rank over 200 MB of memory. Call it before the first use
/// of any tensor. A build without CUDA, and a GPU number that libtorch does not see, are Errors of kind
/// kFailure.
void load_cuda(int device_index);

/// Returns the address of the function `name` in that module, or null if load_cuda() was not called. A module
/// without that function is an Error of kind kFailure.
void* cuda_symbol(const char* name);

}  // namespace accel::train
