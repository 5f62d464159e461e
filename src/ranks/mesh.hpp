#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

namespace accel {

/// An axis of the mesh of ranks: a dimension of torch's device mesh.
enum class Axis {
  kDpReplicate,  ///< The copies of the model.
  kDpShard,      ///< The shards of a copy that train on different batches.
  kSp,           ///< The parts of a batch's sequences: sequence parallelism.
  kTp,           ///< The parts of parameters that tensor parallelism cuts.
};

/// All axes in the order of the mesh, which is torch's: the last axis is the fastest, so its ranks are
/// neighbours.
inline constexpr std::array kAxes = {Axis::kDpReplicate, Axis::kDpShard, Axis::kSp, Axis::kTp};
/// The axes whose ranks train on different batches.
inline constexpr std::array kDataAxes = {Axis::kDpReplicate, Axis::kDpShard};
/// The axes over which a copy of the model is sharded.
inline constexpr std::array kShardAxes = {Axis::kDpShard, Axis::kSp};
/// The axes over which losses and gradients are averaged. Ranks that differ on no other axis have computed
/// losses of different tokens.
inline constexpr std::array kMeanAxes = {Axis::kDpReplicate, Axis::kDpShard, Axis::kSp};

/// The place of `axis` in kAxes.
constexpr std::size_t index_of(Axis axis) { return static_cast<std::size_t>(axis); }
/// torch's name of the axis: "dp_shard".
[[nodiscard]] std::string_view name_of(Axis axis);

/// Where a rank stands in a mesh.
struct MeshPlace {
  int replica = 0;
  int shard = 0;
  int tp = 0;  ///< The number of its part of parameters that tensor parallelism cuts.
};

/// The layout of the ranks of a job along named axes. A model is copied along dp_replicate and sharded over
/// the axes dp_shard and sp together. Along tp, tensor parallelism cuts some of its parameters: rank =
/// (replica * shards + shard) * tp size + tp.
///
/// 1 x N is full sharding, N x 1 is plain data parallelism.
class Mesh {
 public:
  /// A mesh of one rank.
  Mesh() : Mesh(1, 1) {}
  Mesh(int dp_replicate, int dp_shard, int sp = 1, int tp = 1) : sizes_{dp_replicate, dp_shard, sp, tp} {}

  /// The number of ranks along `axis`.
  [[nodiscard]] int size(Axis axis) const { return sizes_[index_of(axis)]; }
  /// The number of all ranks.
  [[nodiscard]] int size() const { return size(kAxes); }
  /// The number of ranks that train on different batches.
  [[nodiscard]] int data_size() const { return size(kDataAxes); }
  [[nodiscard]] int replicas() const { return size(Axis::kDpReplicate); }
  [[nodiscard]] int shards() const { return size(kShardAxes); }
  [[nodiscard]] int tp() const { return size(Axis::kTp); }
  /// The number of ranks over which losses and gradients are averaged.
  [[nodiscard]] int mean_size() const { return size(kMeanAxes); }

  /// The number of `rank` among the ranks along `axis`.
  [[nodiscard]] int coordinate(int rank, Axis axis) const { return rank / stride(axis) % size(axis); }
  [[nodiscard]] MeshPlace place_of(int rank) const {
    return {coordinate(rank, Axis::kDpReplicate), coordinate(rank, kShardAxes), coordinate(rank, Axis::kTp)};
  }

  /// The ranks, including `rank`, that differ from it on no other axes than `axes`, in ascending order if
  /// `axes` are in the order of kAxes.
  [[nodiscard]] std::vector<int> group(int rank, std::span<const Axis> axes) const;
  /// The ranks along `axis` through `rank`, in the order of their coordinates.
  [[nodiscard]] std::vector<int> group(int rank, Axis axis) const { return group(rank, {&axis, 1}); }
  /// The ranks of `rank`'s shard group that share units with it between forward and backward, if groups of
  /// `size` ranks do so. `size` divides the number of shards. The ranks are neighbours, as in torch.
  [[nodiscard]] std::vector<int> reshard_group(int rank, int size) const;

  /// The number of `rank` among the ranks that differ from it on no other axes than `axes`, which are in the
  /// order of kAxes.
  [[nodiscard]] int coordinate(int rank, std::span<const Axis> axes) const {
    int number = 0;
    for (const Axis axis : axes) number = number * size(axis) + coordinate(rank, axis);
    return number;
  }

 private:
  [[nodiscard]] int size(std::span<const Axis> axes) const {
    int ranks = 1;
    for (const Axis axis : axes) ranks *= size(axis);
    return ranks;
  }
  /// How far apart two ranks are that are neighbours along `axis`.
  [[nodiscard]] int stride(Axis axis) const { return size(std::span(kAxes).subspan(index_of(axis) + 1)); }

  std::array<int, kAxes.size()> sizes_;
};

}  // namespace accel
