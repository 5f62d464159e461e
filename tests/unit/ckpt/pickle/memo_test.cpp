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
  EXPECT_EQ(memo.count(), 2U);
}

TEST(PickleMemoTest, TheNextIndexIsTheNumberOfThoseThatAreSet) {
  // Indices 2, 66 and 70.
  Memo memo({0b100, 0b1000100}, 1000);
  for (int index = 0; index < 68; ++index) {
    EXPECT_EQ(memo.put_next(number(index)), index == 2 || index == 66);
  }
  EXPECT_EQ(memo.get(2), number(2));
  EXPECT_EQ(memo.get(66), number(66));
  EXPECT_EQ(memo.get(70), std::nullopt);
  // An index that leaves a gap, and indices that were set before. Counting goes on from their number.
  EXPECT_TRUE(memo.put(70, number(-1)));
  EXPECT_FALSE(memo.put(5, number(-2)));
  EXPECT_TRUE(memo.put(2, number(-3)));
  EXPECT_EQ(memo.count(), 69U);
  EXPECT_FALSE(memo.put_next(number(69)));
  EXPECT_TRUE(memo.put_next(number(70)));
  EXPECT_EQ(memo.count(), 70U);  // 70 was set already.
  EXPECT_EQ(memo.get(2), number(-3));
  EXPECT_EQ(memo.get(70), number(70));
}

TEST(PickleMemoTest, IndicesThatShareARecentSlotAreKeptApart) {
  Memo memo({0b1, 0, 0, 0, 0b1}, 1000);
  (void)memo.put(0, number(1));
  (void)memo.put(256, number(2));
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(memo.get(0), number(1));
    EXPECT_EQ(memo.get(256), number(2));
  }
}

}  // namespace
}  // namespace accel::ckpt::pickle
