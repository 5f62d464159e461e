#pragma once

#include <functional>
#include <vector>

#include "train/c10d/mesh_groups.hpp"
#include "train/fsdp/flat_buffer.hpp"
#include "train/model/weight_source.hpp"

namespace accel::train {

/// Where a parameter's elements come from.
struct ShardSource {
  std::size_t parameter = 0;          ///< Index in the structure.
  at::ScalarType dtype = at::kFloat;  ///< As the source gives it; converted if the shard has another.
};

/// A flat buffer whose shard is to be filled.
struct ShardTarget {
  std::reference_wrapper<FlatBuffer> buffer;
  std::vector<ShardSource> sources;  ///< Of the buffer's parameters.
  int shard = 0;                     ///< This rank's.
};

/// Fills the shard with the bytes of its own elements, read from `weights`; no other byte of the parameters
/// is read.
void load_shard(WeightSource& weights, const ShardTarget& target);

/// Fills the shards of all ranks of `groups` with what rank 0 reads: all of the buffer, which it holds
/// meanwhile, and nobody else does. `weights` is null on the other ranks. Collective.
void scatter_shards(WeightSource* weights, const ShardTarget& target, const MeshGroups& groups);

}  // namespace accel::train
