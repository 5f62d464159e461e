#include "ranks/mesh.hpp"

namespace accel {

std::vector<int> Mesh::shard_group(int rank) const {
  std::vector<int> ranks;
  ranks.reserve(static_cast<std::size_t>(shards));
  for (int shard = 0; shard < shards; ++shard) ranks.push_back(rank_at({place_of(rank).replica, shard}));
  return ranks;
}

std::vector<int> Mesh::replicate_group(int rank) const {
  std::vector<int> ranks;
  ranks.reserve(static_cast<std::size_t>(replicas));
  for (int replica = 0; replica < replicas; ++replica)
    ranks.push_back(rank_at({replica, place_of(rank).shard}));
  return ranks;
}

std::vector<int> Mesh::reshard_group(int rank, int size) const {
  std::vector<int> ranks;
  ranks.reserve(static_cast<std::size_t>(size));
  const int first = rank - place_of(rank).shard % size;
  for (int i = 0; i < size; ++i) ranks.push_back(first + i);
  return ranks;
}

}  // namespace accel
