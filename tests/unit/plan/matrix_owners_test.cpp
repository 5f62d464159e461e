#include "plan/matrix_owners.hpp"

#include <gtest/gtest.h>

#include <map>
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
  EXPECT_EQ(buckets[0].part_numel, 225 + 200 + 100);
}

TEST(MatrixOwnersTest, MatricesOfAnOwnerDoNotOverlapAndBucketsAreLimited) {
  const FlatLayout layout = layout_of({{8, 4}, {4, 8}, {3, 3}, {0, 5}}, 3);
  const GroupRange range = group_ranges(layout).front();
  const std::vector<MatrixGroup> groups(5, {&layout, range});
  const auto buckets = plan_matrix_owners(groups, 3, 2 * 73);
  ASSERT_EQ(buckets.size(), 3U);  // Two buffers of 73 elements each, and one.
  std::size_t matrices = 0;
  std::vector<double> loads(3, 0);
  for (const MatrixBucket& bucket : buckets) {
    std::map<int, std::map<std::int64_t, std::int64_t>> used;
    for (const OwnedMatrix& matrix : bucket.matrices) {
      const FlatParameter& parameter = layout.parameters[matrix.parameter];
      EXPECT_GT(parameter.numel, 0);
      used[matrix.owner][matrix.offset] = matrix.offset + parameter.numel;
      loads.at(static_cast<std::size_t>(matrix.owner)) += 1;
      ++matrices;
    }
    for (const auto& [owner, ranges] : used) {
      std::int64_t end = 0;
      for (const auto& [first, last] : ranges) {
        EXPECT_EQ(first, end);
        end = last;
      }
      EXPECT_LE(end, bucket.part_numel);
    }
  }
  EXPECT_EQ(matrices, 15U);  // The empty one has no owner.
  for (const double load : loads) EXPECT_GE(load, 4);
}

TEST(MatrixOwnersTest, ABufferThatIsLargerThanABucketIsOne) {
  const FlatLayout layout = layout_of({{8, 8}, {8, 8}}, 1);
  const auto buckets = plan_matrix_owners({{&layout, group_ranges(layout).front()}}, 1, 10);
  ASSERT_EQ(buckets.size(), 1U);
  EXPECT_EQ(buckets[0].part_numel, 128);
  EXPECT_TRUE(plan_matrix_owners({}, 4, 10).empty());
}

}  // namespace
}  // namespace accel
