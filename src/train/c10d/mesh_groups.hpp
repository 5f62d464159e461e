#pragma once

#include <memory>

#include "ranks/mesh.hpp"
#include "train/c10d/group.hpp"

namespace accel::train {

/// The groups of ranks through which this rank trains its part of a model that is spread over a mesh. Copies
/// share the groups, which end with the last copy.
class MeshGroups {
 public:
  /// The groups of `mesh`, whose size is that of `world`; with a `reshard_size`, which divides its shards,
  /// also groups of so many ranks that share a unit between forward and backward. A group that is all of
  /// `world` is `world` itself, which must outlive this. Collective.
  static MeshGroups split(Group& world, const Mesh& mesh, int reshard_size);
  /// As the configuration has them: in as many replicas as it says. That the world is no multiple of them is
  /// an Error of kind kUsage.
  static MeshGroups split(Group& world, const core::FsdpConfig& fsdp);

  /// Of groups that somebody else made; `reshard` may be null.
  MeshGroups(Group& world, const Mesh& mesh, std::unique_ptr<Group> shard, std::unique_ptr<Group> replicate,
             std::unique_ptr<Group> reshard);

  /// Ends all of them but the world, as Group::shut_down() says; after a barrier of the world. Collective.
  void shut_down() const;

  [[nodiscard]] const Mesh& mesh() const { return mesh_; }
  /// This rank's.
  [[nodiscard]] MeshPlace place() const { return mesh_.place_of(world_->rank()); }
  [[nodiscard]] Group& world() const { return *world_; }
  /// Over which this rank's copy of the model is cut; its ranks are numbered by their shards.
  [[nodiscard]] Group& shard() const { return shard_ ? *shard_ : *world_; }
  /// With the same shard as this rank, by replicas.
  [[nodiscard]] Group& replicate() const { return replicate_ ? *replicate_ : *world_; }
  /// Which share a unit between forward and backward; null if that is the shard group, or nobody.
  [[nodiscard]] Group* reshard() const { return reshard_.get(); }

 private:
  Group* world_;
  Mesh mesh_;
  // Null: all of the world.
  std::shared_ptr<Group> shard_;
  std::shared_ptr<Group> replicate_;
  std::shared_ptr<Group> reshard_;
};

}  // namespace accel::train
