#include "ckpt/dcp/rank_plan.hpp"

#include <gmock/gmock.h>

#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

DcpItem chunk(const std::string& name, DType dtype, Dims shape, Box box) {
  return {{"model", name}, TensorChunk{dtype, std::move(shape), std::move(box)}};
}

TEST(DcpPlanTest, ItemsFollowEachOtherAligned) {
  const DcpRankPlan plan = plan_dcp_rank(3, {chunk("a", DType::kFloat32, {4}, {{0}, {3}}),
                                             chunk("b", DType::kBFloat16, {}, {{}, {}}),
                                             {{"lr"}, 0.5}});
  EXPECT_EQ(plan.file, "__3_0.distcp");
  ASSERT_EQ(plan.items.size(), 3U);
  EXPECT_EQ(plan.items[0].record_offset, 0U);
  EXPECT_EQ(plan.items[0].payload_bytes, 12U);
  EXPECT_EQ(plan.items[1].payload_bytes, 2U);
  EXPECT_EQ(plan.items[2].payload_bytes, 0U);
  std::uint64_t end = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    const PlannedItem& item = plan.items[i];
    EXPECT_EQ(item.record_offset % 64, 0U);
    EXPECT_EQ(item.offset % 64, 0U);
    EXPECT_GE(item.record_offset, end);
    EXPECT_GE(item.offset, item.record_offset + dcp_item_record(plan, i).size());
    end = item.offset + item.length;
  }
  EXPECT_EQ(plan.total_bytes, plan.items[2].offset + plan.items[2].length);
}

TEST(DcpPlanTest, RefusesABoxOutsideItsTensor) {
  EXPECT_THAT(error_of(ErrorKind::kFailure,
                       [] {
                         (void)plan_dcp_rank(0, {chunk("a", DType::kInt8, {4}, {{3}, {2}})});
                       }),
              HasSubstr("'model.a'"));
}

}  // namespace
}  // namespace accel::ckpt
