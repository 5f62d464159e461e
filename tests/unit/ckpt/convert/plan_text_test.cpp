#include "ckpt/convert/plan_text.hpp"

#include <gmock/gmock.h>

#include "fake_checkpoint.hpp"

namespace accel::ckpt {
namespace {

TEST(PlanTextTest, DescribesWhatGoesWhere) {
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
