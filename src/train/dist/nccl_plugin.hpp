#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace accel::train {

/// The shared module beside accel-worker that links libtorch_cuda and NCCL, and the one function in it.
inline constexpr const char* kNcclPluginFile = "accel-cuda.so";
inline constexpr const char* kMakeNcclSymbol = "accel_make_nccl";

using MakeNccl = void(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size,
                      c10::Device device, c10::intrusive_ptr<c10d::Backend>& backend);

}  // namespace accel::train
