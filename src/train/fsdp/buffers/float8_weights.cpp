#include "train/fsdp/buffers/float8_weights.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "base/error.hpp"
#include "train/fsdp/buffers/flat_buffer.hpp"

namespace accel::train {
namespace {

constexpr at::ScalarType kDtype = at::kFloat8_e4m3fn;

/// `tensor` on `device`, without making the host wait for it.
at::Tensor sent_to(const at::Tensor& tensor, at::Device device) {
  if (tensor.device() == device) return tensor;
  const at::Tensor pinned = at::empty(tensor.sizes(), tensor.options().pinned_memory(true)).copy_(tensor);
  return pinned.to(device, /*non_blocking=*/true);
}

}  // namespace

Float8Weights::Float8Weights(const FlatLayout& layout, const c10::Storage& memory)
    : layout_(layout),
      scales_(at::zeros({static_cast<std::int64_t>(layout.parameters.size())},
                        at::TensorOptions().dtype(at::kFloat).device(memory.device()))) {
  std::int64_t index = 0;
  for (const FlatParameter& parameter : layout.parameters) {
    gathered_.push_back(
        {tensor_on(memory, parameter.offset, parameter.spec.shape, kDtype), scales_.select(0, index++)});
  }
}

void Float8Weights::cast(const at::Tensor& bytes, const at::Tensor& values, int shard) const {
  if (outdated_) {
    throw Error(
        ErrorKind::kFailure,
        fmt::format("'{}' is to be cast to float8, and its scale is that of values before the last step",
                    layout_.parameters.front().spec.fqns.front()));
  }
  const at::NoGradGuard no_grad;
  for (const ShardPiece& piece : pieces_of(layout_, shard)) {
    const auto part = [&](const at::Tensor& tensor) {
      return tensor.narrow(0, piece.shard_offset, piece.in_parameter.size());
    };
    float8_cast_to(part(bytes), part(values), gathered_[piece.parameter].scale);
  }
}

at::Tensor Float8Weights::largest_in(const at::Tensor& values, int shard) const {
  const at::NoGradGuard no_grad;
  const std::vector<ShardPiece> pieces = pieces_of(layout_, shard);
  std::vector<at::Tensor> largest(layout_.parameters.size(),
                                  at::zeros({}, values.options().dtype(at::kFloat)));
  if (pieces.empty()) return at::stack(largest);
  std::vector<at::Tensor> parts;
  parts.reserve(pieces.size());
  for (const ShardPiece& piece : pieces)
    parts.push_back(values.narrow(0, piece.shard_offset, piece.in_parameter.size()));
  const std::vector<at::Tensor> norms = at::_foreach_norm(parts, std::numeric_limits<double>::infinity());
  for (std::size_t i = 0; i < pieces.size(); ++i) largest[pieces[i].parameter] = norms[i].to(at::kFloat);
  return at::stack(largest);
}

void Float8Weights::set_scales(const at::Tensor& scales) {
  const at::NoGradGuard no_grad;
  scales_.copy_(scales);
  outdated_ = false;
}

void update_float8_scales(std::span<FlatBuffer* const> buffers, Group& shard_group) {
  const at::NoGradGuard no_grad;
  std::vector<Float8Weights*> outdated;
  std::vector<at::Tensor> largest;
  for (FlatBuffer* buffer : buffers) {
    Float8Weights* weights = buffer->float8_weights();
    if (weights == nullptr || !weights->is_outdated()) continue;
    outdated.push_back(weights);
    largest.push_back(
        sent_to(weights->largest_in(buffer->shard(), shard_group.rank()), buffer->compute_device()));
  }
  if (outdated.empty()) return;
  const at::Tensor all = at::cat(largest);
  shard_group.all_reduce_max(all).wait();
  const at::Tensor scales = float8_scale(all, kDtype);
  std::int64_t begin = 0;
  for (Float8Weights* weights : outdated) {
    const auto count = static_cast<std::int64_t>(weights->gathered().size());
    weights->set_scales(scales.narrow(0, begin, count));
    begin += count;
  }
}

}  // namespace accel::train
