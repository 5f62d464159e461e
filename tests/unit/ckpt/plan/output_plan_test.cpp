#include "ckpt/plan/output_plan.hpp"

#include <gmock/gmock.h>

#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

OutputPlan plan_of(std::uint64_t bytes, std::vector<OutputSegment> segments) {
  return {{{"out.bin", bytes, std::move(segments), {}}}};
}

std::string rejection_of(std::uint64_t bytes, std::vector<OutputSegment> segments) {
  return error_of(ErrorKind::kFailure, [&] { check_plan(plan_of(bytes, std::move(segments))); });
}

TEST(OutputPlanTest, TakesSegmentsThatTouchAndGaps) {
  EXPECT_NO_THROW(check_plan(plan_of(0, {})));
  EXPECT_NO_THROW(check_plan(
      plan_of(20, {{0, 3, "abc"}, {3, 0, ""}, {3, 4, TensorContent{}}, {8, 12, FileContent{"x", 100}}})));
}

TEST(OutputPlanTest, RejectsOverlap) {
  EXPECT_EQ(rejection_of(9, {{0, 3, "abc"}, {2, 3, "def"}}),
            "two parts of 'out.bin' would overlap at byte 2");
  EXPECT_THAT(rejection_of(9, {{4, 3, "abc"}, {0, 3, "def"}}), HasSubstr("overlap at byte 0"));
}

TEST(OutputPlanTest, RejectsATextOfAnotherSize) {
  EXPECT_EQ(rejection_of(9, {{0, 4, "abc"}}), "a part of 'out.bin' has 3 bytes, planned with 4");
}

TEST(OutputPlanTest, RejectsWhatIsBeyondTheFile) {
  EXPECT_EQ(rejection_of(9, {{6, 4, TensorContent{}}}), "parts of 'out.bin' reach to byte 10 of 9");
}

TEST(OutputPlanTest, RejectsAnOverflow) {
  (void)error_of(ErrorKind::kCorrupt, [] {
    check_plan(plan_of(9, {{~std::uint64_t{0}, 2, FileContent{}}}));
  });
}

TEST(OutputPlanTest, TotalBytes) {
  EXPECT_EQ(OutputPlan{}.total_bytes(), 0U);
  OutputPlan plan = plan_of(9, {});
  plan.files.push_back({"b", 4, {}, {}});
  EXPECT_EQ(plan.total_bytes(), 13U);
  plan.files.push_back({"c", ~std::uint64_t{0}, {}, {}});
  EXPECT_THROW((void)plan.total_bytes(), Error);
}

TEST(OutputPlanTest, ATextFileIsThatText) {
  const OutputFile file = text_file("a.json", "{}\n");
  EXPECT_EQ(file.name, "a.json");
  EXPECT_EQ(file.bytes, 3U);
  ASSERT_EQ(file.segments.size(), 1U);
  EXPECT_EQ(std::get<std::string>(file.segments[0].content), "{}\n");
  EXPECT_NO_THROW(check_plan({{file}}));
}

TEST(OutputPlanTest, AppendedArchivesBecomeSegments) {
  const auto layout = [] {
    return ZipLayout({{"archive/data.pkl", 5}, {"archive/data/0", 0}, {"archive/data/1", 8}});
  };
  OutputFile file{"f", 0, {}, {}};
  append_archive(file, 0, layout(), {"12345", "", TensorContent{3, DType::kFloat64, {}}});
  const std::uint64_t first_end = file.bytes;
  EXPECT_EQ(first_end, layout().total_bytes());
  append_archive(file, 4096, layout(), {"67890", "", FileContent{}});
  EXPECT_EQ(file.bytes, 4096 + layout().total_bytes());
  ASSERT_EQ(file.segments.size(), 6U);
  ASSERT_EQ(file.archives.size(), 2U);
  EXPECT_EQ(file.archives[0].first_segment, 0U);
  EXPECT_EQ(file.archives[1].first_segment, 3U);
  EXPECT_EQ(file.archives[1].offset, 4096U);
  for (std::size_t i = 0; i < 3; ++i) {
    const ZipRecord& record = file.archives[1].layout.records()[i];
    EXPECT_EQ(file.segments[3 + i].offset, 4096 + record.data_offset);
    EXPECT_EQ(file.segments[3 + i].bytes, record.size);
  }
  EXPECT_EQ(std::get<std::string>(file.segments[3].content), "67890");
  EXPECT_EQ(std::get<TensorContent>(file.segments[2].content).source, 3U);
  EXPECT_NO_THROW(check_plan({{file}}));
}

TEST(OutputPlanTest, RejectsAnArchiveThatDoesNotFit) {
  OutputFile file{"f", 100, {}, {}};
  (void)error_of(ErrorKind::kFailure, [&] { append_archive(file, 99, ZipLayout({{"a/b", 1}}), {"x"}); });
  (void)error_of(ErrorKind::kFailure, [&] { append_archive(file, 100, ZipLayout({{"a/b", 1}}), {}); });
  append_archive(file, 100, ZipLayout({{"a/b", 1}}), {"x"});
  EXPECT_EQ(file.segments.size(), 1U);
}

}  // namespace
}  // namespace accel::ckpt
