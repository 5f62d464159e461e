#include "ranks/mesh.hpp"

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

namespace accel {
namespace {

using ::testing::ElementsAre;

TEST(MeshTest, RanksStandInTorchsOrder) {
  const Mesh mesh{2, 3};
  EXPECT_EQ(mesh.size(), 6);
  EXPECT_EQ(mesh.place_of(4).replica, 1);
  EXPECT_EQ(mesh.place_of(4).shard, 1);
  EXPECT_THAT(mesh.shard_group(4), ElementsAre(3, 4, 5));
  EXPECT_THAT(mesh.replicate_group(4), ElementsAre(1, 4));
}

TEST(MeshTest, NeighboursOfOneReplicaKeepAUnitTogether) {
  const Mesh mesh{2, 4};
  EXPECT_THAT(mesh.reshard_group(1, 2), ElementsAre(0, 1));
  EXPECT_THAT(mesh.reshard_group(2, 2), ElementsAre(2, 3));
  EXPECT_THAT(mesh.reshard_group(7, 2), ElementsAre(6, 7));
  EXPECT_THAT(mesh.reshard_group(5, 4), ElementsAre(4, 5, 6, 7));
}

RC_GTEST_PROP(MeshTest, PlacesAndRanksAreInverse, ()) {
  const Mesh mesh{*rc::gen::inRange(1, 7), *rc::gen::inRange(1, 7)};
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const MeshPlace place = mesh.place_of(rank);
    RC_ASSERT(mesh.rank_at(place) == rank);
    RC_ASSERT(mesh.shard_group(rank).at(static_cast<std::size_t>(place.shard)) == rank);
    RC_ASSERT(mesh.replicate_group(rank).at(static_cast<std::size_t>(place.replica)) == rank);
  }
}

}  // namespace
}  // namespace accel
