#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <string>
#include <vector>

#include "train/c10d/nccl_version.hpp"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace accel::train {

/// What is needed to create a group over NCCL.
struct NcclRequest {
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0;              ///< This rank's number in the group.
  std::vector<int> members;  ///< The numbers in the job of the group's ranks.
  std::string name;
  c10::Device device;
  std::chrono::milliseconds timeout;  ///< The time-out of a collective.
};

/// The two functions of accel-cuda.so (device/accelerator.hpp), the module that links libtorch_cuda and NCCL.
inline constexpr const char* kMakeNcclSymbol = "accel_make_nccl";
inline constexpr const char* kNcclVersionsSymbol = "accel_nccl_versions";

using MakeNccl = void(const NcclRequest& request, c10::intrusive_ptr<c10d::Backend>& backend);
using GetNcclVersions = void(NcclVersions& versions);

}  // namespace accel::train
