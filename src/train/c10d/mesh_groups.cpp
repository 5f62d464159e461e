#include "train/c10d/mesh_groups.hpp"

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"

namespace accel::train {
namespace {

std::unique_ptr<Group> part_of(Group& world, const std::vector<int>& ranks, const std::string& name) {
  if (static_cast<int>(ranks.size()) == world.size()) return nullptr;
  return std::make_unique<Group>(world.split(ranks, name));
}

}  // namespace

MeshGroups MeshGroups::split(Group& world, const Mesh& mesh, int reshard_size) {
  if (mesh.size() != world.size() || (reshard_size > 0 && mesh.shards % reshard_size != 0)) {
    throw Error(ErrorKind::kUsage,
                fmt::format("{} ranks are not a mesh of {} replicas of {} shards with reshard groups of {}",
                            world.size(), mesh.replicas, mesh.shards, reshard_size));
  }
  // Every rank creates the groups in this order.
  auto shard = part_of(world, mesh.shard_group(world.rank()), "dp_shard");
  auto replicate = part_of(world, mesh.replicate_group(world.rank()), "dp_replicate");
  std::unique_ptr<Group> reshard;
  if (reshard_size > 0 && reshard_size < mesh.shards)
    reshard = part_of(world, mesh.reshard_group(world.rank(), reshard_size), "reshard");
  return {world, mesh, std::move(shard), std::move(replicate), std::move(reshard)};
}

MeshGroups MeshGroups::split(Group& world, const config::FsdpConfig& fsdp) {
  return split(world, Mesh{fsdp.replicate_size, world.size() / fsdp.replicate_size}, fsdp.reshard_size);
}

MeshGroups::MeshGroups(Group& world, const Mesh& mesh, std::unique_ptr<Group> shard,
                       std::unique_ptr<Group> replicate, std::unique_ptr<Group> reshard)
    : world_(&world),
      mesh_(mesh),
      shard_(std::move(shard)),
      replicate_(std::move(replicate)),
      reshard_(std::move(reshard)) {}

// The groups are shut down in the reverse order of their creation.
void MeshGroups::shut_down() const {
  for (Group* group : {reshard_.get(), replicate_.get(), shard_.get()}) {
    if (group != nullptr) group->shut_down();
  }
}

}  // namespace accel::train
