#include "train/fsdp/load_shards.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace accel::train {

void load_shard(WeightSource& weights, const ShardTarget& target) {
  const at::NoGradGuard no_grad;
  const FlatBuffer& buffer = target.buffer;
  for (const ShardPiece& piece : pieces_of(buffer.layout(), target.shard)) {
    at::Tensor part = buffer.shard().narrow(0, piece.shard_offset, piece.in_parameter.size());
    const ShardSource& source = target.sources[piece.parameter];
    const bool direct = part.is_cpu() && part.scalar_type() == source.dtype;
    at::Tensor host = direct ? part : at::empty(part.sizes(), at::TensorOptions().dtype(source.dtype));
    weights.read_parameter(source.parameter, piece.in_parameter.begin,
                           {static_cast<std::byte*>(host.mutable_data_ptr()), host.nbytes()});
    if (!direct) part.copy_(host);
  }
}

}  // namespace accel::train
