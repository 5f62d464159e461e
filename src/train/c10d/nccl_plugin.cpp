#include "train/c10d/nccl_plugin.hpp"

#include <nccl.h>
#include <torch/csrc/cuda/nccl.h>

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

extern "C" __attribute__((visibility("default"))) void accel_nccl_versions(
    accel::train::NcclVersions& versions) {
  versions.header = {NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH};
  // The major version is in the upper 32 bits, minor and patch in 16 bits each, as in
  // torch.cuda.nccl.version().
  const std::uint64_t torch = torch::cuda::nccl::version();
  versions.libtorch = {static_cast<int>(torch >> 32), static_cast<int>((torch >> 16) & 0xffff),
                       static_cast<int>(torch & 0xffff)};
  int code = 0;
  if (::ncclGetVersion(&code) != ncclSuccess) code = 0;
  versions.library = accel::train::NcclVersion::of_code(code);
}

extern "C" __attribute__((visibility("default"))) void accel_make_nccl(
    const accel::train::NcclRequest& request, c10::intrusive_ptr<c10d::Backend>& backend) {
  // A rank waits for collectives, so they go before what it computes meanwhile.
  const auto options = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
  options->timeout = request.timeout;
  // libtorch's log, and its report of a collective that does not end, show the group's name and ranks.
  options->group_name = request.name;
  options->global_ranks_in_group.assign(request.members.begin(), request.members.end());
  const auto size = static_cast<int>(request.members.size());
  auto nccl = c10::make_intrusive<c10d::ProcessGroupNCCL>(request.store, request.rank, size, options);
  nccl->setBoundDeviceId(request.device);
  backend = std::move(nccl);
}
