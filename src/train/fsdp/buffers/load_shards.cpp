#include "train/fsdp/buffers/load_shards.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <utility>

namespace accel::train {
namespace {

/// Elements of a parameter, read into `out`, which has as many, on any device and of any dtype.
void read_elements(WeightSource& weights, const ShardSource& source, std::int64_t begin, at::Tensor out) {
  const bool direct = out.is_cpu() && out.scalar_type() == source.dtype;
  at::Tensor host = direct ? out : at::empty(out.sizes(), at::TensorOptions().dtype(source.dtype));
  weights.read_parameter(source.parameter, begin,
                         {static_cast<std::byte*>(host.mutable_data_ptr()), host.nbytes()});
  if (!direct) out.copy_(host);
}

at::Tensor read_whole(WeightSource& weights, const ShardTarget& target) {
  const FlatBuffer& buffer = target.buffer;
  const FlatLayout& layout = buffer.layout();
  at::Tensor whole = at::empty({layout.numel()}, buffer.shard().options().device(buffer.compute_device()));
  for (const ElementRange& gap : gaps_of(layout)) whole.narrow(0, gap.begin, gap.size()).zero_();
  for (std::size_t i = 0; i < layout.parameters.size(); ++i) {
    const FlatParameter& parameter = layout.parameters[i];
    if (parameter.numel == 0) continue;
    read_elements(weights, target.sources[i], 0, whole.narrow(0, parameter.offset, parameter.numel));
  }
  return whole;
}

}  // namespace

void load_shard(WeightSource& weights, const ShardTarget& target) {
  const at::NoGradGuard no_grad;
  const FlatBuffer& buffer = target.buffer;
  for (const ShardPiece& piece : pieces_of(buffer.layout(), target.shard)) {
    read_elements(weights, target.sources[piece.parameter], piece.in_parameter.begin,
                  buffer.shard().narrow(0, piece.shard_offset, piece.in_parameter.size()));
  }
}

void scatter_shards(WeightSource* weights, const ShardTarget& target, const MeshGroups& groups) {
  const at::NoGradGuard no_grad;
  const FlatBuffer& buffer = target.buffer;
  const FlatLayout& layout = buffer.layout();
  // Collectives take tensors on the device that computes.
  const at::Tensor own =
      buffer.is_offloaded()
          ? at::empty({layout.shard_numel}, buffer.shard().options().device(buffer.compute_device()))
          : buffer.shard();
  at::Tensor whole;
  if (groups.world().rank() == 0) whole = read_whole(*weights, target);
  if (layout.mesh.shards() == 1) {
    if (whole.defined()) at::Tensor(own).copy_(whole);
    groups.world().broadcast(own);
  } else {
    // Rank 0 scatters to the first replica, which broadcasts to the others.
    std::vector<at::Tensor> parts;
    if (whole.defined()) parts = whole.split(layout.shard_numel);
    if (groups.place().replica == 0) groups.shard().scatter(own, std::move(parts));
    whole.reset();
    groups.replicate().broadcast(own);
  }
  if (buffer.is_offloaded()) at::Tensor(buffer.shard()).copy_(own);
}

}  // namespace accel::train
