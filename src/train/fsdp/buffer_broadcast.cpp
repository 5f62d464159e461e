#include "train/fsdp/buffer_broadcast.hpp"

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <map>
#include <string>
#include <vector>

#include "base/error.hpp"

namespace accel::train {
namespace {

// Checked on all ranks: if only the ranks that write threw, rank 0 would wait for them.
void require_writable(const std::string& name, const at::Tensor& buffer) {
  if (at::has_internal_overlap(buffer) != at::MemOverlap::Yes) return;
  throw Error(
      ErrorKind::kUsage,
      fmt::format("buffer '{}' is expanded: several of its elements share memory, so rank 0's values cannot "
                  "be broadcast into it, as MULTI_CPU and MULTI_GPU do",
                  name))
      .hint("export the model with a .clone() of that buffer");
}

}  // namespace

BufferBroadcast::BufferBroadcast(const torch::jit::Module& module, Group& group)
    : module_(module), group_(group), has_buffers_(module.buffers(/*recurse=*/true).size() > 0) {}

void BufferBroadcast::before_forward() {
  if (!due_ || !has_buffers_ || group_.size() == 1) return;
  const at::NoGradGuard no_grad;
  // The buffers are looked up anew: a forward may have put another tensor into a slot.
  std::map<at::ScalarType, std::vector<at::Tensor>> by_dtype;
  for (const auto& [name, buffer] : module_.named_buffers(/*recurse=*/true)) {
    if (buffer.numel() == 0) continue;
    require_writable(name, buffer);
    by_dtype[buffer.scalar_type()].push_back(buffer);
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
