#include "plan/layout/matrix_owners.hpp"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace accel {
namespace {

FlatLayout layout_of(const std::vector<std::vector<std::int64_t>>& shapes, int shards) {
  std::vector<ParameterSpec> specs;
  for (const auto& shape : shapes) specs.push_back({{"p" + std::to_string(specs.size())}, shape, 0});
  return make_flat_layout(std::move(specs), 4, Mesh{1, shards});
}

TEST(MatrixOwnersTest, TheMostExpensiveMatrixGoesToTheRankWithTheLeastToDo) {
  // Costs: 10^3, 20^3, 15^3, 10^2 * 20.
  const FlatLayout layout = layout_of({{10, 10}, {20, 20}, {15, 15}, {10, 20}}, 2);
  const auto buckets = plan_matrix_owners({{&layout, group_ranges(layout).front()}}, 2, 1'000'000);
  ASSERT_EQ(buckets.size(), 1U);
  std::vector<int> owners;
  for (const OwnedMatrix& matrix : buckets[0].matrices) owners.push_back(matrix.owner);
  EXPECT_EQ(owners, (std::vector<int>{1, 0, 1, 1}));
}

TEST(MatrixOwnersTest, BucketsAreLimitedAndTheLoadIsThatOfAllBuckets) {
  const FlatLayout layout = layout_of({{8, 4}, {4, 8}, {3, 3}, {0, 5}}, 3);
  const std::vector<MatrixGroup> groups(5, {&layout, group_ranges(layout).front()});
  const auto buckets = plan_matrix_owners(groups, 3, 2 * layout.numel());
  ASSERT_EQ(buckets.size(), 3U);  // Two buffers, two, and one.
  std::vector<int> matrices(3, 0);
  std::size_t next = 0;
  for (const MatrixBucket& bucket : buckets) {
    EXPECT_EQ(bucket.first, next);
    next = bucket.end;
    for (const OwnedMatrix& matrix : bucket.matrices) {
      EXPECT_GE(matrix.group, bucket.first);
      EXPECT_LT(matrix.group, bucket.end);
      EXPECT_GT(layout.parameters[matrix.parameter].numel, 0);  // The empty one has no owner.
      ++matrices.at(static_cast<std::size_t>(matrix.owner));
    }
  }
  EXPECT_EQ(next, groups.size());
  for (const int owned : matrices) EXPECT_GE(owned, 4);  // Of 15.
}

TEST(MatrixOwnersTest, ABufferThatIsLargerThanABucketIsOne) {
  const FlatLayout layout = layout_of({{8, 8}, {8, 8}}, 1);
  const auto buckets = plan_matrix_owners({{&layout, group_ranges(layout).front()}}, 1, 10);
  ASSERT_EQ(buckets.size(), 1U);
  EXPECT_EQ(buckets[0].matrices.size(), 2U);
  EXPECT_TRUE(plan_matrix_owners({}, 4, 10).empty());
}

}  // namespace
}  // namespace accel
