#include "ranks/mesh.hpp"

#include <utility>

namespace accel {

std::string_view name_of(Axis axis) {
  static constexpr std::array<std::string_view, kAxes.size()> kNames = {"dp_replicate", "dp_shard", "sp",
                                                                        "tp"};
  return kNames[index_of(axis)];
}

std::vector<int> Mesh::group(int rank, std::span<const Axis> axes) const {
  int first = rank;
  for (const Axis axis : axes) first -= coordinate(rank, axis) * stride(axis);
  std::vector<int> ranks = {first};
  for (const Axis axis : axes) {
    std::vector<int> along;
    for (const int begin : ranks) {
      for (int i = 0; i < size(axis); ++i) along.push_back(begin + i * stride(axis));
    }
    ranks = std::move(along);
  }
  return ranks;
}

std::vector<int> Mesh::reshard_group(int rank, int size) const {
  const std::vector<int> shards = group(rank, kShardAxes);
  const auto first = shards.begin() + coordinate(rank, kShardAxes) / size * size;
  return {first, first + size};
}

}  // namespace accel
