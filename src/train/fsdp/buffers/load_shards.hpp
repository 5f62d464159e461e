#pragma once

#include <functional>
#include <vector>

#include "train/c10d/mesh_groups.hpp"
#include "train/fsdp/buffers/flat_buffer.hpp"
#include "train/model/open_weights.hpp"

namespace accel::train {

/// Where a parameter's elements come from.
struct ShardSource {
  std::size_t parameter = 0;  ///< Index in the structure.
  /// The dtype that the source gives. It is converted if the shard has another one.
  at::ScalarType dtype = at::kFloat;
};

/// A flat buffer whose shard is to be filled.
struct ShardTarget {
  std::reference_wrapper<FlatBuffer> buffer;
  std::vector<ShardSource> sources;  ///< One source for each parameter of the buffer.
  int shard = 0;                     ///< Index of this rank's shard.
};

/// Fills the shard with its elements, read from `weights`. No other byte of the parameters is read.
void load_shard(WeightSource& weights, const ShardTarget& target);

/// Fills the shards of all ranks of `groups` with what rank 0 reads. Rank 0 alone holds the whole buffer
/// meanwhile. `weights` is null on the other ranks. Collective.
void scatter_shards(WeightSource* weights, const ShardTarget& target, const MeshGroups& groups);

}  // namespace accel::train
