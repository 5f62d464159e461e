#include "structure/tensor_part.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <algorithm>

#include <numeric>

namespace accel {
namespace {

std::int64_t numel(const std::vector<std::int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

TEST(TensorPartTest, RowsAreOneRunAndColumnsOneForEachRow) {
  const std::vector<PartRun> rows = runs_of_part({6, 4}, {0, 2, 2, 6}, 0, 8);
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0].in_whole, 8);
  EXPECT_EQ(rows[0].count, 8);
  const std::vector<PartRun> columns = runs_of_part({3, 6}, {1, 2, 2, 6}, 1, 6);
  ASSERT_EQ(columns.size(), 3U);
  EXPECT_EQ(columns[0].in_whole, 3);
  EXPECT_EQ(columns[0].count, 1);
  EXPECT_EQ(columns[2].in_whole, 14);
  EXPECT_EQ(columns[2].in_part, 4);
  EXPECT_EQ(columns[2].count, 2);
}

/// Looks at the elements one by one.
RC_GTEST_PROP(TensorPartTest, RunsNameTheElementsOfThePart, ()) {
  std::vector<std::int64_t> shape = *rc::gen::container<std::vector<std::int64_t>>(
      *rc::gen::inRange<std::size_t>(1, 4), rc::gen::inRange<std::int64_t>(1, 7));
  TensorPart part;
  part.dim = *rc::gen::inRange<std::size_t>(0, shape.size());
  part.whole = shape[part.dim];
  part.begin = *rc::gen::inRange<std::int64_t>(0, part.whole);
  part.size = *rc::gen::inRange<std::int64_t>(1, part.whole - part.begin + 1);
  const std::vector<std::int64_t> own = shape_of_part(shape, part);
  std::vector<std::int64_t> expected;  // The index in the whole of each element of the part.
  for (std::int64_t i = 0; i < numel(own); ++i) {
    std::int64_t rest = i;
    std::int64_t index = 0;
    std::int64_t stride = 1;
    for (std::size_t d = shape.size(); d-- > 0;) {
      const std::int64_t at = rest % own[d] + (d == part.dim ? part.begin : 0);
      rest /= own[d];
      index += at * stride;
      stride *= shape[d];
    }
    expected.push_back(index);
  }
  const auto begin = *rc::gen::inRange<std::int64_t>(0, numel(own) + 1);
  const auto end = *rc::gen::inRange<std::int64_t>(begin, numel(own) + 1);
  std::int64_t next = begin;
  for (const PartRun& run : runs_of_part(shape, part, begin, end)) {
    RC_ASSERT(run.in_part == next);
    RC_ASSERT(run.count > 0);
    for (std::int64_t i = 0; i < run.count; ++i)
      RC_ASSERT(run.in_whole + i == expected[static_cast<std::size_t>(run.in_part + i)]);
    next += run.count;
  }
  RC_ASSERT(next == end);
  for (std::size_t i = 0; i < expected.size(); ++i)
    RC_ASSERT(index_in_part(shape, part, expected[i]) == static_cast<std::int64_t>(i));
  for (std::int64_t i = 0; i < numel(shape); ++i) {
    const bool is_own = std::find(expected.begin(), expected.end(), i) != expected.end();
    RC_ASSERT(index_in_part(shape, part, i).has_value() == is_own);
  }
}

}  // namespace
}  // namespace accel
