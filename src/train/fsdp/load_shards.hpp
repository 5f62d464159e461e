#pragma once

#include <span>

#include "train/fsdp/flat_buffer.hpp"
#include "train/model/weight_source.hpp"

namespace accel::train {

/// Where a parameter's elements come from.
struct ShardSource {
  std::size_t parameter = 0;          ///< Index in the structure.
  at::ScalarType dtype = at::kFloat;  ///< As the model has it; converted if the shard has another.
};

/// Fills the buffer's shard, which is number `shard`, with the bytes of its own elements, read from
/// `weights`; no other byte of the parameters is read. `sources` are the buffer's parameters.
void load_shard(WeightSource& weights, std::span<const ShardSource> sources, FlatBuffer& buffer, int shard);

}  // namespace accel::train
