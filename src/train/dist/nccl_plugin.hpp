#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <string>
#include <vector>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace accel::train {

/// The shared module beside accel-worker that links libtorch_cuda and NCCL, and the one function in it.
inline constexpr const char* kNcclPluginFile = "accel-cuda.so";
inline constexpr const char* kMakeNcclSymbol = "accel_make_nccl";

using MakeNccl = void(const c10::intrusive_ptr<c10d::Store>& store, int rank, const std::vector<int>& members,
                      const std::string& name, c10::Device device,
                      c10::intrusive_ptr<c10d::Backend>& backend);

}  // namespace accel::train
