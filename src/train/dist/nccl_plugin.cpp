#include "train/dist/nccl_plugin.hpp"

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

extern "C" __attribute__((visibility("default"))) void accel_make_nccl(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size, c10::Device device,
    c10::intrusive_ptr<c10d::Backend>& backend) {
  // What a rank waits for goes before what it computes meanwhile.
  const auto options = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
  auto nccl = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, world_size, options);
  nccl->setBoundDeviceId(device);
  backend = std::move(nccl);
}
