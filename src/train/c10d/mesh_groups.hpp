#pragma once

#include <array>
#include <memory>

#include "ranks/mesh.hpp"
#include "train/c10d/group.hpp"

namespace accel::train {

/// The data ranks, as this rank sees them: there is one for each share of the training data. Ranks of the
/// mesh that differ on no axis of kDataAxes have the same `rank` here, and the same batches.
struct DataParallel {
  int rank = 0;
  int size = 1;
};

/// The groups of ranks through which this rank trains its part of a model that is spread over a mesh. Copies
/// of a MeshGroups share the groups, which end with the last copy.
class MeshGroups {
 public:
  /// Creates the groups of `mesh`, whose size is that of `world`. With a `reshard_size`, which divides the
  /// number of shards, it also creates groups of that many ranks that share a unit between forward and
  /// backward. A group of all ranks is `world` itself, which must outlive this object. Collective.
  static MeshGroups split(Group& world, const Mesh& mesh, int reshard_size);
  /// Creates the groups for the configuration's number of replicas. A world size that is not a multiple of it
  /// is an Error of kind kUsage.
  static MeshGroups split(Group& world, const config::FsdpConfig& fsdp);

  /// Takes groups that exist already, of a mesh whose ranks are all data ranks. A null `shard` or `replicate`
  /// stands for `world`. `reshard` may be null. There is no group along another axis.
  MeshGroups(Group& world, const Mesh& mesh, std::unique_ptr<Group> shard, std::unique_ptr<Group> replicate,
             std::unique_ptr<Group> reshard);

  /// Shuts down all groups but the world, as Group::shut_down() does. Call it after a barrier of the world.
  /// Collective.
  void shut_down() const;

  [[nodiscard]] const Mesh& mesh() const { return mesh_; }
  /// This rank's place in the mesh.
  [[nodiscard]] MeshPlace place() const { return mesh_.place_of(world_->rank()); }
  [[nodiscard]] Group& world() const { return *world_; }
  /// The ranks along `axis` through this rank, numbered by their coordinates.
  [[nodiscard]] Group& along(Axis axis) const { return or_world(axes_[index_of(axis)]); }
  /// The ranks over which this rank's copy of the model is sharded, numbered by their shards.
  [[nodiscard]] Group& shard() const { return or_world(shard_); }
  /// The ranks that have the same shard as this rank, numbered by their replicas.
  [[nodiscard]] Group& replicate() const { return along(Axis::kDpReplicate); }
  /// The ranks among which tensor parallelism cuts parameters, in the order of their parts.
  [[nodiscard]] Group& tp() const { return along(Axis::kTp); }
  /// The ranks that share a unit between forward and backward, or null if these are the shard group or
  /// nobody.
  [[nodiscard]] Group* reshard() const { return reshard_.get(); }
  /// The ranks over which losses and gradients are averaged. They differ in the seeds of their random
  /// numbers.
  [[nodiscard]] Group& mean() const { return or_world(mean_); }
  /// This rank among those between which training data are split.
  [[nodiscard]] DataParallel data() const {
    return {mesh_.coordinate(world_->rank(), kDataAxes), mesh_.data_size()};
  }

 private:
  MeshGroups(Group& world, const Mesh& mesh) : world_(&world), mesh_(mesh) {}
  [[nodiscard]] Group& or_world(const std::shared_ptr<Group>& group) const {
    return group ? *group : *world_;
  }

  Group* world_;
  Mesh mesh_;
  // A null group stands for the world, but for that of reshard().
  std::array<std::shared_ptr<Group>, kAxes.size()> axes_;
  std::shared_ptr<Group> shard_;  ///< If it is the group of an axis, it is shared with axes_.
  std::shared_ptr<Group> mean_;
  std::shared_ptr<Group> reshard_;
};

}  // namespace accel::train
