#include "ckpt/dcp/rank_write.hpp"

#include <gmock/gmock.h>

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

TEST(DcpWriteTest, ARankWithoutItemsHasAnEmptyFile) {
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
  // Too many at once, too many in pieces, and none.
  for (const char* piece : {"AAAAAA", "AA", ""}) {
    EXPECT_THAT(
        error_of(ErrorKind::kFailure,
                 [&] { write_dcp_rank(dir.path(), plan, [&](std::size_t) { return bytes_of(piece); }); }),
        HasSubstr("'model.a' in __0_0.distcp"));
    EXPECT_TRUE(names_in(dir.path()).empty());
  }
}

TEST(DcpWriteTest, APayloadMayComeInPieces) {
  const TempDir dir;
  const DcpRankPlan plan = plan_dcp_rank(0, {chunk("a", DType::kUInt8, {5}, {{0}, {5}}), {{"lr"}, 0.5}});
  std::vector<std::string> pieces = {"AA", "BBB"};
  std::size_t next = 0;
  const FileSummary summary =
      write_dcp_rank(dir.path(), plan, [&](std::size_t) { return bytes_of(pieces.at(next++)); });
  const std::string written = read_file(dir / "__0_0.distcp");
  EXPECT_EQ(summary.crc32, crc32(bytes_of(written)));
  const TempDir other;
  EXPECT_EQ(write_dcp_rank(other.path(), plan, [](std::size_t) { return bytes_of("AABBB"); }).crc32,
            summary.crc32);
  EXPECT_EQ(read_file(other / "__0_0.distcp"), written);
}

TEST(DcpWriteTest, NeverWritesOverAnotherCheckpoint) {
  const TempDir dir;
  testing::write_file(dir / "__0_0.distcp", "old");
  EXPECT_THROW(write_dcp_rank(dir.path(), plan_dcp_rank(0, {}), nullptr), Error);
  EXPECT_EQ(read_file(dir / "__0_0.distcp"), "old");
}

}  // namespace
}  // namespace accel::ckpt
