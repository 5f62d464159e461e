#include "train/c10d/nccl_plugin.hpp"

#include <nccl.h>
#include <torch/csrc/cuda/nccl.h>

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

extern "C" __attribute__((visibility("default"))) void accel_nccl_versions(
    accel::train::NcclVersions& versions) {
  versions.header = {NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH};
  // Three numbers of 16 bits, the first of 32, as torch.cuda.nccl.version() takes them apart.
  const std::uint64_t torch = torch::cuda::nccl::version();
  versions.libtorch = {static_cast<int>(torch >> 32), static_cast<int>((torch >> 16) & 0xffff),
                       static_cast<int>(torch & 0xffff)};
  int code = 0;
  if (::ncclGetVersion(&code) != ncclSuccess) code = 0;
  versions.library = accel::train::NcclVersion::of_code(code);
}

extern "C" __attribute__((visibility("default"))) void accel_make_nccl(
    const accel::train::NcclRequest& request, c10::intrusive_ptr<c10d::Backend>& backend) {
  // What a rank waits for goes before what it computes meanwhile.
  const auto options = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
  options->timeout = request.timeout;
  // By these libtorch's log, and what it writes when a collective does not end, tell groups and ranks apart.
  options->group_name = request.name;
  options->global_ranks_in_group.assign(request.members.begin(), request.members.end());
  const auto size = static_cast<int>(request.members.size());
  auto nccl = c10::make_intrusive<c10d::ProcessGroupNCCL>(request.store, request.rank, size, options);
  nccl->setBoundDeviceId(request.device);
  backend = std::move(nccl);
}
