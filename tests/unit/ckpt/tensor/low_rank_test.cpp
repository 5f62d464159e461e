#include "ckpt/tensor/low_rank.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <random>
#include <vector>

namespace accel::ckpt {
namespace {

std::vector<float> numbers(std::int64_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> result(static_cast<std::size_t>(count));
  for (float& number : result) number = normal(random);
  return result;
}

struct Factors {
  std::int64_t rows, rank, columns;
  std::vector<float> left = numbers(rows * rank, 1);
  std::vector<float> right = numbers(rank * columns, 2);

  // One element by the rule of the header, which no other code computes.
  [[nodiscard]] float updated(std::int64_t element, float value, float scaling) const {
    const std::int64_t row = element / columns;
    const std::int64_t column = element % columns;
    double sum = 0;
    for (std::int64_t k = 0; k < rank; ++k)
      sum += static_cast<double>(left[static_cast<std::size_t>(row * rank + k)]) *
             right[static_cast<std::size_t>(k * columns + column)];
    const float delta = static_cast<float>(sum) * scaling;
    return value + delta;
  }
};

// Adds to the elements [begin, end) of the product's rows.
void expect_range(const Factors& factors, std::int64_t begin, std::int64_t end) {
  const std::vector<float> before = numbers(end - begin, 3);
  std::vector<float> values = before;
  const std::int64_t first = begin / factors.columns;
  const std::span<const float> left =
      std::span(factors.left).subspan(static_cast<std::size_t>(first * factors.rank));
  add_low_rank({left, factors.right, factors.rank, factors.columns, 1.75F}, begin - first * factors.columns,
               values);
  for (std::int64_t i = begin; i < end; ++i) {
    const auto at = static_cast<std::size_t>(i - begin);
    ASSERT_EQ(values[at], factors.updated(i, before[at], 1.75F)) << "element " << i;
  }
}

TEST(LowRankTest, AddsTheProductToWholeRows) {
  for (const std::int64_t columns : {1, 7, 255, 256, 257, 600}) expect_range({3, 5, columns}, 0, 3 * columns);
  expect_range({4, 1, 3}, 0, 12);
}

TEST(LowRankTest, AddsTheProductToARangeThatBeginsAndEndsWithinRows) {
  const Factors factors{5, 4, 300};
  expect_range(factors, 290, 1010);  // Parts of the first and the last row, and of tiles.
  expect_range(factors, 310, 320);   // A part of one row.
  expect_range(factors, 599, 600);
  expect_range(factors, 600, 600);
}

TEST(LowRankTest, ProductsAreExactBeforeTheyAreRounded) {
  // In float32 the sum of the first two products is 2^24, and the third one would be lost.
  const std::vector<float> left{4096, 1, 1};
  const std::vector<float> right{4096, 1, -16777216};
  std::vector<float> values{0};
  add_low_rank({left, right, 3, 1, 1}, 0, values);
  EXPECT_EQ(values[0], 1);
}

}  // namespace
}  // namespace accel::ckpt
