#include "train/dist/nccl_plugin.hpp"

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

extern "C" __attribute__((visibility("default"))) void accel_make_nccl(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, const std::vector<int>& members,
    const std::string& name, c10::Device device, c10::intrusive_ptr<c10d::Backend>& backend) {
  // What a rank waits for goes before what it computes meanwhile.
  const auto options = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
  // By these libtorch's log, and what it writes when a collective does not end, tell groups and ranks apart.
  options->group_name = name;
  options->global_ranks_in_group.assign(members.begin(), members.end());
  const auto size = static_cast<int>(members.size());
  auto nccl = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
  nccl->setBoundDeviceId(device);
  backend = std::move(nccl);
}
