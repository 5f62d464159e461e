#include "train/c10d/mesh_groups.hpp"

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "core/config/mesh.hpp"

namespace accel::train {
namespace {

std::unique_ptr<Group> part_of(Group& world, const std::vector<int>& ranks, std::string_view name) {
  if (static_cast<int>(ranks.size()) == world.size()) return nullptr;
  return std::make_unique<Group>(world.split(ranks, std::string(name)));
}

}  // namespace

MeshGroups MeshGroups::split(Group& world, const Mesh& mesh, int reshard_size) {
  if (mesh.size() != world.size() || (reshard_size > 0 && mesh.shards() % reshard_size != 0)) {
    throw Error(ErrorKind::kUsage,
                fmt::format("{} ranks are not a mesh of {} replicas of {} shards with reshard groups of {}",
                            world.size(), mesh.replicas(), mesh.shards(), reshard_size));
  }
  // Every rank creates the groups in this order.
  MeshGroups groups(world, mesh);
  for (auto axis = kAxes.rbegin(); axis != kAxes.rend(); ++axis)
    groups.axes_[index_of(*axis)] = part_of(world, mesh.group(world.rank(), *axis), name_of(*axis));
  groups.shard_ = mesh.size(Axis::kSp) == 1 ? groups.axes_[index_of(Axis::kDpShard)]
                                            : part_of(world, mesh.group(world.rank(), kShardAxes), "fsdp");
  groups.mean_ = part_of(world, mesh.group(world.rank(), kMeanAxes), "dp");
  if (reshard_size > 0 && reshard_size < mesh.shards())
    groups.reshard_ = part_of(world, mesh.reshard_group(world.rank(), reshard_size), "reshard");
  return groups;
}

MeshGroups MeshGroups::split(Group& world, const config::FsdpConfig& fsdp) {
  return split(world, config::mesh_of(fsdp, world.size()), fsdp.reshard_size);
}

MeshGroups::MeshGroups(Group& world, const Mesh& mesh, std::unique_ptr<Group> shard,
                       std::unique_ptr<Group> replicate, std::unique_ptr<Group> reshard)
    : MeshGroups(world, mesh) {
  axes_[index_of(Axis::kDpShard)] = std::move(shard);
  shard_ = axes_[index_of(Axis::kDpShard)];
  axes_[index_of(Axis::kDpReplicate)] = std::move(replicate);
  reshard_ = std::move(reshard);
}

void MeshGroups::shut_down() const {
  const auto shut = [](const std::shared_ptr<Group>& group) {
    if (group != nullptr) group->shut_down();
  };
  // The groups are shut down in the reverse order of their creation.
  shut(reshard_);
  shut(mean_);
  if (shard_ != axes_[index_of(Axis::kDpShard)]) shut(shard_);
  for (const std::shared_ptr<Group>& group : axes_) shut(group);
}

}  // namespace accel::train
