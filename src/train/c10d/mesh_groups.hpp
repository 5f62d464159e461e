#pragma once

#include <memory>

#include "ranks/mesh.hpp"
#include "train/c10d/group.hpp"

namespace accel::train {

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

  /// Takes groups that exist already. A null `shard` or `replicate` stands for `world`. `reshard` may be
  /// null.
  MeshGroups(Group& world, const Mesh& mesh, std::unique_ptr<Group> shard, std::unique_ptr<Group> replicate,
             std::unique_ptr<Group> reshard);

  /// Shuts down all groups but the world, as Group::shut_down() does. Call it after a barrier of the world.
  /// Collective.
  void shut_down() const;

  [[nodiscard]] const Mesh& mesh() const { return mesh_; }
  /// This rank's place in the mesh.
  [[nodiscard]] MeshPlace place() const { return mesh_.place_of(world_->rank()); }
  [[nodiscard]] Group& world() const { return *world_; }
  /// The ranks over which this rank's copy of the model is sharded, numbered by their shards.
  [[nodiscard]] Group& shard() const { return shard_ ? *shard_ : *world_; }
  /// The ranks that have the same shard as this rank, numbered by their replicas.
  [[nodiscard]] Group& replicate() const { return replicate_ ? *replicate_ : *world_; }
  /// The ranks that share a unit between forward and backward, or null if these are the shard group or
  /// nobody.
  [[nodiscard]] Group* reshard() const { return reshard_.get(); }

 private:
  Group* world_;
  Mesh mesh_;
  // A null shard or replicate group stands for the world.
  std::shared_ptr<Group> shard_;
  std::shared_ptr<Group> replicate_;
  std::shared_ptr<Group> reshard_;
};

}  // namespace accel::train
