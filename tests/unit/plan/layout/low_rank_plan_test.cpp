#include "plan/layout/low_rank_plan.hpp"

#include <gmock/gmock.h>

#include <utility>

#include "plan/layout/comm_hook_plan.hpp"

namespace accel {
namespace {

using config::CommHookType;

FlatLayout layout_of(std::vector<std::vector<std::int64_t>> shapes) {
  std::vector<ParameterSpec> parameters;
  for (std::vector<std::int64_t>& shape : shapes) parameters.push_back({{"p"}, std::move(shape)});
  return make_flat_layout(std::move(parameters), 4, Mesh{2, 1});
}

// The rule of torch's _should_compress, on both sides of its threshold.
TEST(LowRankPlanTest, FactorsWhatGetsSmallerByEnough) {
  config::PowerSgdConfig config;
  const auto rank = [&](std::vector<std::int64_t> shape) {
    const LowRankPlan plan = plan_low_rank(layout_of({std::move(shape)}), config);
    return plan.matrices.empty() ? 0 : plan.matrices.front().rank;
  };
  EXPECT_EQ(rank({4, 4}), 0);  // 16 elements, and factors of 8.
  EXPECT_EQ(rank({4, 5}), 1);  // 20 elements, and factors of 9.
  EXPECT_EQ(rank({100}), 0);
  EXPECT_EQ(rank({100, 100}), 1);
  EXPECT_EQ(rank({8, 2, 3, 3}), 1);  // [8, 18]
  EXPECT_EQ(rank({}), 0);
  EXPECT_EQ(rank({0, 3}), 0);
  config.matrix_approximation_rank = 30;
  EXPECT_EQ(rank({100, 100}), 0);  // 10000 elements, and factors of 6000.
  config.min_compression_rate = 1.5;
  EXPECT_EQ(rank({100, 100}), 30);
  config.min_compression_rate = 0.25;
  EXPECT_EQ(rank({7, 100}), 7);
  EXPECT_EQ(rank({100}), 1);
}

TEST(LowRankPlanTest, MatricesOfOneShapeStandTogether) {
  config::PowerSgdConfig config;
  config.matrix_approximation_rank = 2;
  const FlatLayout layout = layout_of({{16, 32}, {32, 16}, {5}, {16, 4, 8}, {32, 16}, {16, 31}});
  const LowRankPlan plan = plan_low_rank(layout, config);
  std::vector<std::int64_t> offsets;
  std::vector<std::int64_t> ps;
  std::vector<std::int64_t> qs;
  for (const LowRankMatrix& matrix : plan.matrices) {
    offsets.push_back(matrix.offset);
    ps.push_back(matrix.p_offset);
    qs.push_back(matrix.q_offset);
  }
  const auto& parameters = layout.parameters;
  EXPECT_THAT(offsets,
              ::testing::ElementsAre(parameters[0].offset, parameters[3].offset, parameters[1].offset,
                                     parameters[4].offset, parameters[5].offset));
  EXPECT_THAT(ps, ::testing::ElementsAre(0, 32, 64, 128, 192));
  EXPECT_THAT(qs, ::testing::ElementsAre(0, 64, 128, 160, 192));
  EXPECT_EQ(plan.p_numel, 224);
  EXPECT_EQ(plan.q_numel, 254);
  ASSERT_EQ(plan.uncompressed.size(), 1U);
  EXPECT_EQ(plan.uncompressed[0].begin, parameters[2].offset);
  EXPECT_EQ(plan.uncompressed_numel, 5);
}

TEST(CommHookPlanTest, CountsWhatIsSentAndHeld) {
  const FlatLayout layout = layout_of({{100, 100}, {32}});
  const auto n = static_cast<std::uint64_t>(layout.numel());
  ASSERT_EQ(n, 10048U);  // With padding.
  const auto expect = [&](const config::DdpConfig& config, std::uint64_t sent, std::uint64_t kept,
                          std::uint64_t copied) {
    const CommHookPlan plan = plan_comm_hook(layout, config);
    EXPECT_EQ(plan.sent_bytes, sent);
    EXPECT_EQ(plan.state_bytes, kept);
    EXPECT_EQ(plan.copied_bytes, copied);
  };
  expect({CommHookType::kBf16}, 2 * n, 0, 2 * n);
  expect({CommHookType::kBf16, CommHookType::kBf16}, 2 * n, 0, 2 * n);
  expect({CommHookType::kBf16, CommHookType::kFp16}, 2 * n, 0, 4 * n);
  config::DdpConfig low{CommHookType::kPowerSgd};
  expect(low, 4 * 232, 4 * (n + 100), 4 * 132);
  low.comm_wrapper = CommHookType::kFp16;
  expect(low, 2 * 232, 2 * (n + 100), 2 * (n + 132));
  low.power_sgd.use_error_feedback = false;
  low.power_sgd.warm_start = false;
  expect(low, 2 * 232, 0, 2 * (n + 232));
}

}  // namespace
}  // namespace accel
