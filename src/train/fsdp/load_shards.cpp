#include "train/fsdp/load_shards.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace accel::train {

void load_shard(WeightSource& weights, std::span<const ShardSource> sources, FlatBuffer& buffer, int shard) {
  const at::NoGradGuard no_grad;
  for (const ShardPiece& piece : pieces_of(buffer.layout(), shard)) {
    at::Tensor target = buffer.shard().narrow(0, piece.shard_offset, piece.in_parameter.size());
    const ShardSource& source = sources[piece.parameter];
    const bool direct = target.is_cpu() && target.scalar_type() == source.dtype;
    at::Tensor host = direct ? target : at::empty(target.sizes(), at::TensorOptions().dtype(source.dtype));
    weights.read_parameter(source.parameter, piece.in_parameter.begin,
                           {static_cast<std::byte*>(host.mutable_data_ptr()), host.nbytes()});
    if (!direct) target.copy_(host);
  }
}

}  // namespace accel::train
