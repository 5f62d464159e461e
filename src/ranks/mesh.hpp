#pragma once

#include <vector>

namespace accel {

/// Where a rank stands in a mesh.
struct MeshPlace {
  int replica = 0;
  int shard = 0;
};

/// How the ranks of a job are laid out: `replicas` copies of the model, each cut over `shards` ranks. Torch's
/// device mesh (dp_replicate, dp_shard), in its order: rank = replica * shards + shard.
///
/// 1 x N is full sharding, N x 1 plain data parallelism.
struct Mesh {
  int replicas = 1;
  int shards = 1;

  [[nodiscard]] int size() const { return replicas * shards; }
  [[nodiscard]] MeshPlace place_of(int rank) const { return {rank / shards, rank % shards}; }
  [[nodiscard]] int rank_at(MeshPlace place) const { return place.replica * shards + place.shard; }

  /// The ranks over which `rank`'s copy of the model is cut, `rank` among them, in order of their shards.
  [[nodiscard]] std::vector<int> shard_group(int rank) const;
  /// The ranks that have the same shard as `rank`, in order of their replicas.
  [[nodiscard]] std::vector<int> replicate_group(int rank) const;
  /// The ranks among `rank`'s shard group that share its units between forward and backward if these are kept
  /// by groups of `size`, which divides `shards`: neighbours, as in torch.
  [[nodiscard]] std::vector<int> reshard_group(int rank, int size) const;
};

}  // namespace accel
