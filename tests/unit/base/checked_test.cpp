#include "base/checked.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace accel {
namespace {

constexpr auto kMax = std::numeric_limits<std::int64_t>::max();

TEST(CheckedTest, AddAndMulGiveExactResults) {
  EXPECT_EQ(checked_add<std::int64_t>(kMax - 1, 1), kMax);
  EXPECT_EQ(checked_mul<std::int64_t>(1 << 20, 1 << 20), std::int64_t{1} << 40);
}

TEST(CheckedTest, OverflowIsCorrupt) {
  EXPECT_THROW((void)checked_add<std::int64_t>(kMax, 1), Error);
  EXPECT_THROW((void)checked_mul<std::uint64_t>(std::uint64_t{1} << 32, std::uint64_t{1} << 32), Error);
}

TEST(CheckedTest, NumelOfShapes) {
  EXPECT_EQ(checked_numel({}), 1);
  EXPECT_EQ(checked_numel(std::vector<std::int64_t>{3, 0, 5}), 0);
  EXPECT_EQ(checked_numel(std::vector<std::int64_t>{3, 4, 5}), 60);
  EXPECT_THROW((void)checked_numel(std::vector<std::int64_t>{3, -1}), Error);
  EXPECT_THROW((void)checked_numel(std::vector<std::int64_t>{kMax, 2}), Error);
}

TEST(CheckedTest, NbytesOverflow) {
  EXPECT_EQ(checked_nbytes(std::vector<std::int64_t>{2, 3}, 4), 24u);
  EXPECT_THROW((void)checked_nbytes(std::vector<std::int64_t>{kMax}, 4), Error);
}

TEST(CheckedTest, RoundUp) {
  EXPECT_EQ(round_up<std::uint64_t>(0, 64), 0u);
  EXPECT_EQ(round_up<std::uint64_t>(1, 64), 64u);
  EXPECT_EQ(round_up<std::uint64_t>(64, 64), 64u);
  EXPECT_THROW((void)round_up<std::int64_t>(kMax, 64), Error);
}

}  // namespace
}  // namespace accel
