#pragma once

#include <vector>

namespace accel {

/// Where a rank stands in a mesh.
struct MeshPlace {
  int replica = 0;
  int shard = 0;
};

/// The layout of the ranks of a job: `replicas` copies of the model, each sharded over `shards` ranks. This
/// is torch's device mesh (dp_replicate, dp_shard), in its order: rank = replica * shards + shard.
///
/// 1 x N is full sharding, N x 1 is plain data parallelism.
struct Mesh {
  int replicas = 1;
  int shards = 1;

  [[nodiscard]] int size() const { return replicas * shards; }
  [[nodiscard]] MeshPlace place_of(int rank) const { return {rank / shards, rank % shards}; }
  [[nodiscard]] int rank_at(MeshPlace place) const { return place.replica * shards + place.shard; }

  /// The ranks over which `rank`'s copy of the model is sharded, including `rank`, in the order of their
  /// shards.
  [[nodiscard]] std::vector<int> shard_group(int rank) const;
  /// The ranks that have the same shard as `rank`, in the order of their replicas.
  [[nodiscard]] std::vector<int> replicate_group(int rank) const;
  /// The ranks of `rank`'s shard group that share units with it between forward and backward, if groups of
  /// `size` ranks do so. `size` divides `shards`. The ranks are neighbours, as in torch.
  [[nodiscard]] std::vector<int> reshard_group(int rank, int size) const;
};

}  // namespace accel
