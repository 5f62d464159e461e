#include "ckpt/pickle/memo.hpp"

#include <gtest/gtest.h>

namespace accel::ckpt::pickle {
namespace {

Ref number(std::int64_t value) { return *Ref::small(value); }

TEST(PickleMemoTest, KeepsOnlyWhatWillBeFetched) {
  // Indices 1, 64 and 70.
  Memo memo({0b10, 0b1000001}, 100);
  EXPECT_FALSE(memo.put(0, number(5)));
  EXPECT_TRUE(memo.put(1, number(6)));
  EXPECT_TRUE(memo.put(64, number(7)));
  EXPECT_FALSE(memo.put(99, number(8)));
  EXPECT_EQ(memo.get(1), number(6));
  EXPECT_EQ(memo.get(64), number(7));
  EXPECT_EQ(memo.get(0), std::nullopt);
  EXPECT_EQ(memo.get(70), std::nullopt);  // Not set.
  EXPECT_EQ(memo.get(5000), std::nullopt);
}

TEST(PickleMemoTest, TheLastOfAnIndexCounts) {
  Memo memo({0b1}, 10);
  (void)memo.put(0, number(1));
  EXPECT_EQ(memo.get(0), number(1));
  (void)memo.put(0, number(2));
  EXPECT_EQ(memo.get(0), number(2));
  EXPECT_EQ(memo.count(), 1U);
}

TEST(PickleMemoTest, CountsTheIndicesThatAreSet) {
  Memo memo({}, 1000);
  (void)memo.put(0, number(1));
  (void)memo.put(700, number(1));
  (void)memo.put(0, number(2));
  EXPECT_EQ(memo.count(), 2U);
}

}  // namespace
}  // namespace accel::ckpt::pickle
