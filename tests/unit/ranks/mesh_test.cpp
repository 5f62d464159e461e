#include "ranks/mesh.hpp"

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include <set>
#include <tuple>

namespace accel {
namespace {

using ::testing::ElementsAre;

TEST(MeshTest, RanksStandInTorchsOrder) {
  const Mesh mesh{2, 3};
  EXPECT_EQ(mesh.size(), 6);
  EXPECT_EQ(mesh.data_size(), 6);
  EXPECT_EQ(mesh.replicas(), 2);
  EXPECT_EQ(mesh.shards(), 3);
  EXPECT_EQ(mesh.place_of(5).replica, 1);
  EXPECT_EQ(mesh.place_of(5).shard, 2);
  EXPECT_THAT(mesh.group(4, Axis::kDpShard), ElementsAre(3, 4, 5));
  EXPECT_THAT(mesh.group(4, Axis::kDpReplicate), ElementsAre(1, 4));
  EXPECT_THAT(mesh.group(4, kDataAxes), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(mesh.group(4, std::span<const Axis>()), ElementsAre(4));
}

TEST(MeshTest, RanksThatShareASequenceAreShardsAndReadTheSameData) {
  const Mesh mesh{2, 3, 2};
  EXPECT_EQ(mesh.size(), 12);
  EXPECT_EQ(mesh.data_size(), 6);
  EXPECT_EQ(mesh.mean_size(), 12);
  EXPECT_EQ(mesh.replicas(), 2);
  EXPECT_EQ(mesh.shards(), 6);
  EXPECT_EQ(mesh.place_of(9).replica, 1);
  EXPECT_EQ(mesh.place_of(9).shard, 3);
  EXPECT_THAT(mesh.group(9, Axis::kSp), ElementsAre(8, 9));
  EXPECT_THAT(mesh.group(9, Axis::kDpShard), ElementsAre(7, 9, 11));
  EXPECT_THAT(mesh.group(9, kShardAxes), ElementsAre(6, 7, 8, 9, 10, 11));
  EXPECT_EQ(mesh.coordinate(8, kDataAxes), mesh.coordinate(9, kDataAxes));
  EXPECT_EQ(mesh.coordinate(9, kDataAxes), 4);
  EXPECT_THAT(mesh.reshard_group(9, 2), ElementsAre(8, 9));
}

TEST(MeshTest, TheRanksOfTensorParallelismAreNeighboursAndShareTheirBatches) {
  const Mesh mesh{2, 3, 1, 2};
  EXPECT_EQ(mesh.size(), 12);
  EXPECT_EQ(mesh.data_size(), 6);
  EXPECT_EQ(mesh.tp(), 2);
  EXPECT_EQ(mesh.place_of(9).replica, 1);
  EXPECT_EQ(mesh.place_of(9).shard, 1);
  EXPECT_EQ(mesh.place_of(9).tp, 1);
  EXPECT_THAT(mesh.group(9, Axis::kTp), ElementsAre(8, 9));
  EXPECT_THAT(mesh.group(9, Axis::kDpShard), ElementsAre(7, 9, 11));
  EXPECT_THAT(mesh.group(9, Axis::kDpReplicate), ElementsAre(3, 9));
  EXPECT_THAT(mesh.group(9, kDataAxes), ElementsAre(1, 3, 5, 7, 9, 11));
}

TEST(MeshTest, AxesHaveTorchsNames) {
  EXPECT_EQ(name_of(Axis::kDpReplicate), "dp_replicate");
  EXPECT_EQ(name_of(Axis::kDpShard), "dp_shard");
  EXPECT_EQ(name_of(Axis::kSp), "sp");
  EXPECT_EQ(name_of(Axis::kTp), "tp");
  for (std::size_t i = 0; i < kAxes.size(); ++i) EXPECT_EQ(index_of(kAxes[i]), i);
}

TEST(MeshTest, NeighboursOfOneReplicaKeepAUnitTogether) {
  const Mesh mesh{2, 4};
  EXPECT_THAT(mesh.reshard_group(1, 2), ElementsAre(0, 1));
  EXPECT_THAT(mesh.reshard_group(2, 2), ElementsAre(2, 3));
  EXPECT_THAT(mesh.reshard_group(7, 2), ElementsAre(6, 7));
  EXPECT_THAT(mesh.reshard_group(5, 4), ElementsAre(4, 5, 6, 7));
}

RC_GTEST_PROP(MeshTest, ARankStandsAtItsCoordinateInItsGroupAlongEachAxis, ()) {
  const Mesh mesh{*rc::gen::inRange(1, 4), *rc::gen::inRange(1, 4), *rc::gen::inRange(1, 4),
                  *rc::gen::inRange(1, 4)};
  std::set<std::tuple<int, int, int>> places;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const MeshPlace place = mesh.place_of(rank);
    const int data_rank = place.replica * mesh.shards() + place.shard;
    RC_ASSERT(rank == data_rank * mesh.tp() + place.tp);
    places.emplace(place.replica, place.shard, place.tp);
    for (const Axis axis : kAxes) {
      const std::vector<int> group = mesh.group(rank, axis);
      RC_ASSERT(group.size() == static_cast<std::size_t>(mesh.size(axis)));
      RC_ASSERT(group.at(static_cast<std::size_t>(mesh.coordinate(rank, axis))) == rank);
    }
    for (const std::span<const Axis> axes :
         {std::span<const Axis>(kDataAxes), std::span<const Axis>(kShardAxes),
          std::span<const Axis>(kMeanAxes)}) {
      RC_ASSERT(mesh.group(rank, axes).at(static_cast<std::size_t>(mesh.coordinate(rank, axes))) == rank);
    }
  }
  RC_ASSERT(places.size() == static_cast<std::size_t>(mesh.size()));
}

}  // namespace
}  // namespace accel
