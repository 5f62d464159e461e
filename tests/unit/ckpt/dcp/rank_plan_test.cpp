#include "ckpt/dcp/rank_plan.hpp"

#include <gmock/gmock.h>

#include "ckpt/dcp/metadata.hpp"
#include "ckpt/dcp/record.hpp"
#include "ckpt/io/crc32.hpp"
#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using testing::bytes_of;
using testing::error_of;
using ::testing::HasSubstr;
using testing::names_in;
using testing::read_file;
using testing::TempDir;

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

TEST(DcpPlanTest, ARankWithoutItemsHasAnEmptyFile) {
  const TempDir dir;
  const DcpRankPlan plan = plan_dcp_rank(1, {});
  const FileSummary summary = write_dcp_rank(dir.path(), plan, [](std::size_t) { return bytes_of(""); });
  EXPECT_EQ(summary.name, "__1_0.distcp");
  EXPECT_EQ(summary.bytes, 0U);
  EXPECT_EQ(read_file(dir / "__1_0.distcp"), "");
}

TEST(DcpWriteTest, WritesWhatWasPlannedWithPayloadsAligned) {
  const TempDir dir;
  const DcpRankPlan plan = plan_dcp_rank(0, {chunk("a", DType::kUInt8, {5}, {{0}, {5}}),
                                             {{"lr"}, 0.5},
                                             chunk("b", DType::kUInt8, {3}, {{0}, {3}})});
  const FileSummary summary =
      write_dcp_rank(dir.path(), plan, [](std::size_t i) { return bytes_of(i == 0 ? "AAAAA" : "BBB"); });
  const std::string written = read_file(dir / "__0_0.distcp");
  EXPECT_EQ(summary.bytes, plan.total_bytes);
  EXPECT_EQ(written.size(), plan.total_bytes);
  EXPECT_EQ(summary.crc32, crc32(bytes_of(written)));
  EXPECT_EQ(written.find("AAAAA") % 64, 0U);
  EXPECT_EQ(written.find("BBB") % 64, 0U);
}

TEST(DcpWriteTest, ARecordOfEachItemStandsInFrontOfIt) {
  const TempDir dir;
  const DcpRankPlan plan =
      plan_dcp_rank(2, {chunk("a", DType::kUInt8, {9}, {{2}, {5}}), {{"lr", std::int64_t{3}}, 0.5}});
  write_dcp_rank(dir.path(), plan, [](std::size_t) { return bytes_of("AAAAA"); });
  const std::string written = read_file(dir / "__2_0.distcp");
  const auto record_at = [&](std::uint64_t at) {
    const auto bytes = bytes_of(written).subspan(at);
    return decode_item_record(bytes.first(item_record_bytes(bytes).value()));
  };
  EXPECT_EQ(record_at(plan.items[0].record_offset),
            (ItemRecord{2,
                        0,
                        2,
                        plan.items[0].offset,
                        plan.items[0].length,
                        {"model", "a"},
                        ItemRecord::Chunk{DType::kUInt8, {9}, {{2}, {5}}}}));
  EXPECT_EQ(record_at(plan.items[1].record_offset),
            (ItemRecord{
                2, 1, 2, plan.items[1].offset, plan.items[1].length, {"lr", std::int64_t{3}}, std::nullopt}));
}

TEST(DcpWriteTest, APayloadOfAnotherSizeLeavesNoFile) {
  const TempDir dir;
  const DcpRankPlan plan = plan_dcp_rank(0, {chunk("a", DType::kUInt8, {5}, {{0}, {5}})});
  EXPECT_THAT(error_of(ErrorKind::kFailure,
                       [&] { write_dcp_rank(dir.path(), plan, [](std::size_t) { return bytes_of("A"); }); }),
              HasSubstr("'model.a' in __0_0.distcp"));
  EXPECT_TRUE(names_in(dir.path()).empty());
}

TEST(DcpWriteTest, NeverWritesOverAnotherCheckpoint) {
  const TempDir dir;
  testing::write_file(dir / "__0_0.distcp", "old");
  EXPECT_THROW(write_dcp_rank(dir.path(), plan_dcp_rank(0, {}), nullptr), Error);
  EXPECT_EQ(read_file(dir / "__0_0.distcp"), "old");
}

TEST(DcpMetadataWriteTest, IsReadAsItWasPlanned) {
  std::vector<DcpRankPlan> plans;
  plans.push_back(plan_dcp_rank(0, {chunk("w.x", DType::kFloat8E4M3FN, {2, 3}, {{0, 0}, {1, 3}}),
                                    {{"groups", std::int64_t{0}, "lr"}, 0.5}}));
  plans.push_back(plan_dcp_rank(1, {chunk("w.x", DType::kFloat8E4M3FN, {2, 3}, {{1, 0}, {1, 3}}),
                                    chunk("empty", DType::kInt64, {0, 4}, Box::whole({0, 4}))}));
  const DcpMetadata found = parse_dcp_metadata(bytes_of(encode_dcp_metadata(plans)));
  ASSERT_EQ(found.tensors.size(), 2U);
  EXPECT_EQ(found.version, "1.0.0");
  EXPECT_EQ(found.tensors[0].fqn, "model.empty");
  EXPECT_EQ(found.tensors[0].position, 1U);
  const DcpTensor& x = found.tensors[1];
  EXPECT_EQ(x.path, (StatePath{"model", "w.x"}));
  EXPECT_EQ(x.dtype, DType::kFloat8E4M3FN);
  EXPECT_EQ(x.shape, (Dims{2, 3}));
  ASSERT_EQ(x.chunks.size(), 2U);
  EXPECT_EQ(x.chunks[1].box, (Box{{1, 0}, {1, 3}}));
  EXPECT_EQ(x.chunks[1].where.file(), "__1_0.distcp");
  EXPECT_EQ(x.chunks[1].where.length, plans[1].items[0].length);
  ASSERT_EQ(found.objects.size(), 1U);
  EXPECT_EQ(found.objects[0].fqn, "groups.0.lr");
  EXPECT_EQ(found.objects[0].path, (StatePath{"groups", std::int64_t{0}, "lr"}));
  EXPECT_EQ(found.objects[0].where.offset, plans[0].items[1].offset);
}

TEST(DcpMetadataWriteTest, RefusesWhatNoReaderCouldUse) {
  const auto rejection = [](std::vector<DcpItem> first, std::vector<DcpItem> second) {
    const std::vector<DcpRankPlan> plans{plan_dcp_rank(0, std::move(first)),
                                         plan_dcp_rank(1, std::move(second))};
    return error_of(ErrorKind::kFailure, [&] { (void)encode_dcp_metadata(plans); });
  };
  const DcpItem left = chunk("a", DType::kInt8, {4}, {{0}, {2}});
  const DcpItem right = chunk("a", DType::kInt8, {4}, {{2}, {2}});
  EXPECT_THAT(rejection({left}, {}), HasSubstr("cover 2 of 4"));
  EXPECT_THAT(rejection({left, right}, {right}), HasSubstr("overlap"));
  EXPECT_THAT(rejection({left}, {chunk("a", DType::kUInt8, {4}, {{2}, {2}})}), HasSubstr("dtype or shape"));
  EXPECT_THAT(rejection({left}, {{{"model", "a"}, 1}}), HasSubstr("an object on another"));
  EXPECT_THAT(rejection({{{"lr"}, 1}}, {{{"lr"}, 1}}), HasSubstr("one rank only"));
  EXPECT_THAT(rejection({left}, {{{"model.a"}, TensorChunk{DType::kInt8, {4}, {{2}, {2}}}}}),
              HasSubstr("two paths"));
}

}  // namespace
}  // namespace accel::ckpt
