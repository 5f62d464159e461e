#include "ckpt/read/listed_checkpoint.hpp"

#include <gmock/gmock.h>

#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

ListedTensor tensor_at(StatePath path, std::size_t pieces) {
  ListedTensor tensor{std::move(path), DType::kFloat32, {static_cast<std::int64_t>(pieces)}, {}};
  for (std::size_t i = 0; i < pieces; ++i) {
    tensor.extents.push_back({"file", i * 4, {{static_cast<std::int64_t>(i)}, {1}}, {1}});
  }
  return tensor;
}

Listing listing_of(std::vector<ListedTensor> tensors, std::vector<ListedObject> objects = {}) {
  return {Kind::kTorch, "dir/file", "dir", std::move(tensors), std::move(objects), {{"format", "pt"}}};
}

TEST(ListedCheckpointTest, SaysWhatTheListingSays) {
  ListedCheckpoint checkpoint(listing_of({tensor_at({"b", 0}, 2), tensor_at({"a"}, 0)}, {{{"lr"}, 0.5}}));
  EXPECT_EQ(checkpoint.kind(), Kind::kTorch);
  EXPECT_EQ(checkpoint.path(), "dir/file");
  EXPECT_EQ(checkpoint.directory(), "dir");
  EXPECT_EQ(checkpoint.metadata().at("format"), "pt");
  ASSERT_EQ(checkpoint.tensors().size(), 2U);
  EXPECT_EQ(checkpoint.tensors()[0].name, "b.0");
  EXPECT_EQ(checkpoint.tensors()[0].pieces, 2U);
  EXPECT_EQ(checkpoint.locate(0).extents[1].offset, 4U);
  checkpoint.check_coverage(0);
  EXPECT_EQ(checkpoint.objects().at(0).name, "lr");
  EXPECT_TRUE(same(checkpoint.read_object(0), pickle::Value(0.5)));
}

TEST(ListedCheckpointTest, AHoleOrAnOverlapIsFoundByCoverage) {
  ListedTensor hole = tensor_at({"w"}, 2);
  hole.shape = {3};
  ListedTensor overlap = tensor_at({"v"}, 2);
  overlap.extents[1].box.offsets = {0};
  ListedCheckpoint checkpoint(listing_of({hole, overlap}));
  for (const std::size_t i : {0U, 1U}) {
    EXPECT_THAT(error_of(ErrorKind::kCorrupt, [&] { checkpoint.check_coverage(i); }),
                HasSubstr(checkpoint.tensors()[i].name));
  }
}

TEST(ListedCheckpointTest, NamesMustDiffer) {
  EXPECT_THAT(
      error_of(ErrorKind::kFailure,
               [] {
                 (void)ListedCheckpoint(listing_of({tensor_at({"a", "b"}, 1), tensor_at({"a.b"}, 1)}));
               }),
      HasSubstr("two entries that are called 'a.b'"));
  EXPECT_THAT(error_of(ErrorKind::kFailure,
                       [] {
                         (void)ListedCheckpoint(listing_of({tensor_at({"a"}, 1)}, {{{"a"}, 1}}));
                       }),
              HasSubstr("two entries that are called 'a'"));
}

TEST(ListedCheckpointTest, AnObstacleIsToldWhenTheTensorIsWanted) {
  ListedTensor sparse = tensor_at({"s"}, 0);
  sparse.obstacle = "a sparse tensor";
  ListedCheckpoint checkpoint(listing_of({sparse}));
  EXPECT_THAT(error_of(ErrorKind::kFailure, [&] { (void)checkpoint.locate(0); }),
              HasSubstr("tensor 's' is a sparse tensor, which accel does not read"));
}

}  // namespace
}  // namespace accel::ckpt
