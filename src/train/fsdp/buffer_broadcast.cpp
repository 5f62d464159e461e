#include "train/fsdp/buffer_broadcast.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <map>
#include <vector>

namespace accel::train {

BufferBroadcast::BufferBroadcast(const torch::jit::Module& module, Group& group)
    : module_(module), group_(group), has_buffers_(module.buffers(/*recurse=*/true).size() > 0) {}

void BufferBroadcast::before_forward() {
  if (!due_ || !has_buffers_ || group_.size() == 1) return;
  const at::NoGradGuard no_grad;
  // Looked up anew: a forward may have put another tensor into a slot.
  std::map<at::ScalarType, std::vector<at::Tensor>> by_dtype;
  for (const at::Tensor& buffer : module_.buffers(/*recurse=*/true)) {
    if (buffer.numel() > 0) by_dtype[buffer.scalar_type()].push_back(buffer);
  }
  for (const auto& [dtype, buffers] : by_dtype) {
    std::vector<at::Tensor> flat;
    for (const at::Tensor& buffer : buffers) flat.push_back(buffer.reshape({-1}));
    const at::Tensor all = at::cat(flat);
    group_.broadcast(all);
    if (group_.rank() == 0) continue;
    std::int64_t begin = 0;
    for (at::Tensor buffer : buffers) {
      buffer.copy_(all.narrow(0, begin, buffer.numel()).view(buffer.sizes()));
      begin += buffer.numel();
    }
  }
}

}  // namespace accel::train
