#include "base/host/large_memory.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>

namespace accel {
namespace {

TEST(LargeVectorTest, KeepsItsValuesWhileItGrowsBeyondSmallPages) {
  constexpr std::size_t kCount = std::size_t{3} << 20;
  LargeVector<std::uint64_t> values;
  for (std::size_t i = 0; i < kCount; ++i) values.push_back(i);
  ASSERT_EQ(values.size(), kCount);
  EXPECT_EQ(std::accumulate(values.begin(), values.end(), std::uint64_t{0}), kCount * (kCount - 1) / 2);
  const LargeVector<std::uint64_t> copy = values;
  EXPECT_EQ(copy, values);
}

TEST(LargeVectorTest, InitializesMembersThatHaveAValue) {
  struct Pair {
    int a = 7;
    int b;
  };
  LargeVector<Pair> pairs(5, Pair{1, 2});
  pairs.clear();
  pairs.resize(3);
  for (const Pair& pair : pairs) EXPECT_EQ(pair.a, 7);
}

TEST(LargeVectorTest, LargeArraysBeginAtAPageOfTwoMegabytes) {
  const LargeVector<std::byte> bytes((std::size_t{5} << 20) + 1);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(bytes.data()) % (std::uintptr_t{2} << 20), 0U);
}

TEST(LargeVectorTest, MoreThanThereCanBeIsBadAlloc) {
  EXPECT_THROW((void)allocate_large(std::numeric_limits<std::size_t>::max() - 5), std::bad_alloc);
  EXPECT_THROW((void)LargeAllocator<std::uint64_t>().allocate(std::numeric_limits<std::size_t>::max() / 4),
               std::bad_array_new_length);
}

}  // namespace
}  // namespace accel
