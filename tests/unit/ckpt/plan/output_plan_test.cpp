#include "ckpt/plan/output_plan.hpp"

#include <gmock/gmock.h>

#include "fake_checkpoint.hpp"

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

TEST(OutputPlanTest, DescribesWhatGoesWhere) {
  const testing::TempDir dir;
  testing::FakeCheckpoint source(dir.path(), {testing::Truth::make({"h", "w"}, DType::kFloat32, {4, 3}, 1)});
  const OutputPlan plan{{{"model.safetensors",
                          2000,
                          {{0, 8, "12345678"},
                           {8, 24, TensorContent{0, DType::kFloat32, {{{0, 0}, {2, 3}}}}},
                           {32, 24, TensorContent{0, DType::kBFloat16, {}}},
                           {64, 1000, FileContent{"assets/config.json", 7}}},
                          {}}}};
  std::vector<std::string> expected{"model.safetensors: 2.00 kB (2000 bytes)"};
  const auto add_tensor = [&](const std::string& line) {
    expected.push_back(line);
    for (const Extent& extent : source.locate(0).extents) {
      expected.push_back("    " + to_string(extent.box) + " from " + extent.file + " at byte " +
                         std::to_string(extent.offset));
    }
  };
  add_tensor("  bytes 8 to 32: h.w float32 [4, 3] [0:2, 0:3]");
  add_tensor("  bytes 32 to 56: h.w float32 [4, 3] as bfloat16");
  expected.emplace_back("  bytes 64 to 1064: 'assets/config.json' from byte 7");
  EXPECT_EQ(describe(plan, source), expected);

  OutputState state;
  state.tensors.push_back({{"out.w"}, 0, DType::kFloat32, {4, 3}, {}});
  const std::vector<std::string> names = names_in_output(state, source);
  EXPECT_THAT(names, ::testing::ElementsAre("out.w"));
  EXPECT_THAT(describe(plan, source, names),
              ::testing::Contains(::testing::StartsWith("  bytes 8 to 32: out.w = h.w float32 [4, 3]")));
}

}  // namespace
}  // namespace accel::ckpt
