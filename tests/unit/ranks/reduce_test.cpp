#include "ranks/reduce.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/half.hpp"

namespace accel {
namespace {

/// Lengths around the block of 512 elements that is reduced at a time.
constexpr std::size_t kLengths[] = {0, 1, 3, 511, 512, 513, 2000};

template <class T>
std::vector<T> reduced(Element element, Reduction reduction, const std::vector<std::vector<T>>& ranks) {
  std::vector<const std::byte*> sources;
  for (const std::vector<T>& rank : ranks) sources.push_back(reinterpret_cast<const std::byte*>(rank.data()));
  std::vector<T> out(ranks.front().size() + 1, T{77});
  reduce_in_order(element, reduction, sources, reinterpret_cast<std::byte*>(out.data()),
                  ranks.front().size());
  EXPECT_EQ(out.back(), T{77}) << "written past the end";
  out.pop_back();
  return out;
}

template <class T>
std::vector<std::vector<T>> random_floats(std::size_t ranks, std::size_t length) {
  std::mt19937 random(static_cast<unsigned>(ranks * 1000 + length));
  std::normal_distribution<double> normal;
  std::vector<std::vector<T>> values(ranks, std::vector<T>(length));
  for (auto& rank : values) {
    // The values differ in size, so that the order of a sum shows in its bits.
    for (T& value : rank) value = static_cast<T>(normal(random) * std::pow(10.0, random() % 4));
  }
  return values;
}

template <class T>
void expect_sums_in_rank_order(Element element) {
  for (const std::size_t ranks : {1, 2, 3, 4, 7}) {
    for (const std::size_t length : kLengths) {
      const auto values = random_floats<T>(ranks, length);
      const auto sum = reduced(element, Reduction::kSum, values);
      const auto mean = reduced(element, Reduction::kMean, values);
      bool order_shows = false;
      for (std::size_t i = 0; i < length; ++i) {
        T forward = values[0][i];
        for (std::size_t rank = 1; rank < ranks; ++rank) forward += values[rank][i];
        T backward = values[ranks - 1][i];
        for (std::size_t rank = ranks - 1; rank-- > 0;) backward += values[rank][i];
        ASSERT_EQ(sum[i], forward) << ranks << " ranks, element " << i << " of " << length;
        ASSERT_EQ(mean[i], forward / static_cast<T>(ranks));
        order_shows |= forward != backward;
      }
      EXPECT_TRUE(ranks < 3 || length < 500 || order_shows);
    }
  }
}

TEST(ReduceTest, AddsFloatsInTheOrderOfTheSources) {
  expect_sums_in_rank_order<float>(Element::kFloat32);
  expect_sums_in_rank_order<double>(Element::kFloat64);
}

void expect_rounded_once(Element element, float (*wide)(std::uint16_t), std::uint16_t (*narrow)(float)) {
  for (const std::size_t ranks : {2, 3, 4}) {
    std::vector<std::vector<std::uint16_t>> values(ranks);
    const auto floats = random_floats<float>(ranks, 1300);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      for (const float value : floats[rank]) values[rank].push_back(narrow(value));
    }
    const auto sum = reduced(element, Reduction::kSum, values);
    const auto mean = reduced(element, Reduction::kMean, values);
    const auto most = reduced(element, Reduction::kMax, values);
    for (std::size_t i = 0; i < sum.size(); ++i) {
      float expected = wide(values[0][i]);
      float greatest = expected;
      for (std::size_t rank = 1; rank < ranks; ++rank) {
        expected += wide(values[rank][i]);
        greatest = std::max(greatest, wide(values[rank][i]));
      }
      ASSERT_EQ(sum[i], narrow(expected));
      ASSERT_EQ(mean[i], narrow(expected / static_cast<float>(ranks)));
      ASSERT_EQ(most[i], narrow(greatest));
    }
  }
}

TEST(ReduceTest, RoundsHalfPrecisionOnce) {
  expect_rounded_once(Element::kBFloat16, float_of_bfloat, bfloat_of_float);
  expect_rounded_once(Element::kFloat16, float_of_half, half_of_float);
}

template <class T>
void expect_integers(Element element) {
  constexpr T kMost = std::numeric_limits<T>::max();
  constexpr T kLeast = std::numeric_limits<T>::min();
  const std::vector<std::vector<T>> values = {{1, kMost, 5, kLeast}, {2, 1, 7, 0}, {3, 0, 6, 9}};
  EXPECT_EQ(reduced(element, Reduction::kSum, values),
            (std::vector<T>{6, kLeast, 18, static_cast<T>(kLeast + 9)}));
  EXPECT_EQ(reduced(element, Reduction::kMax, values), (std::vector<T>{3, kMost, 7, 9}));
  EXPECT_EQ(reduced(element, Reduction::kMin, values), (std::vector<T>{1, 0, 5, kLeast}));
  EXPECT_EQ(bytes_of(element), sizeof(T));
  EXPECT_FALSE(can_reduce(element, Reduction::kMean));
  EXPECT_TRUE(can_reduce(element, Reduction::kSum));
}

TEST(ReduceTest, TakesIntegersThatWrap) {
  expect_integers<std::int64_t>(Element::kInt64);
  expect_integers<std::int32_t>(Element::kInt32);
  expect_integers<std::int16_t>(Element::kInt16);
  expect_integers<std::int8_t>(Element::kInt8);
  expect_integers<std::uint8_t>(Element::kUInt8);
}

TEST(ReduceTest, KeepsANanWhicheverRankHasIt) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::vector<float>> values = {{kNan, 1, 1, 2}, {1, kNan, 1, 5}, {1, 1, kNan, -3}};
  for (const Reduction reduction : {Reduction::kSum, Reduction::kMean, Reduction::kMax, Reduction::kMin}) {
    const auto found = reduced(Element::kFloat32, reduction, values);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(std::isnan(found[i])) << i;
    EXPECT_FALSE(std::isnan(found[3]));
  }
  EXPECT_EQ(reduced(Element::kFloat32, Reduction::kMax, values)[3], 5);
  EXPECT_EQ(reduced(Element::kFloat32, Reduction::kMin, values)[3], -3);
}

TEST(ReduceTest, MayWriteOverASource) {
  const auto values = random_floats<float>(3, 1000);
  const auto expected = reduced(Element::kFloat32, Reduction::kSum, values);
  for (std::size_t over = 0; over < 3; ++over) {
    auto copies = values;
    std::vector<const std::byte*> sources;
    for (const auto& rank : copies) sources.push_back(reinterpret_cast<const std::byte*>(rank.data()));
    reduce_in_order(Element::kFloat32, Reduction::kSum, sources,
                    reinterpret_cast<std::byte*>(copies[over].data()), 1000);
    EXPECT_EQ(copies[over], expected);
  }
}

}  // namespace
}  // namespace accel
