#include "train/fsdp/load_shards.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace accel::train {

void load_shard(WeightSource& weights, std::span<const std::size_t> sources, FlatBuffer& buffer, int shard) {
  const at::NoGradGuard no_grad;
  for (const ShardPiece& piece : pieces_of(buffer.layout(), shard)) {
    at::Tensor target = buffer.shard().narrow(0, piece.shard_offset, piece.in_parameter.size());
    at::Tensor host = target.is_cpu() ? target : at::empty_like(target, at::TensorOptions().device(at::kCPU));
    weights.read_parameter(sources[piece.parameter], piece.in_parameter.begin,
                           {static_cast<std::byte*>(host.mutable_data_ptr()), host.nbytes()});
    if (!target.is_cpu()) target.copy_(host);
  }
}

}  // namespace accel::train
