#include "train/fsdp/buffers/gradient_mean.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "ranks_as_threads.hpp"

namespace accel::train {
namespace {

// What torch's _get_gradient_divide_factors returns for float16.
TEST(GradientMeanTest, DividesByAboutTheSquareRootBefore) {
  struct Case {
    int ranks;
    double before;
    double after;
  };
  for (const Case c : {Case{1, 1, 1},
                       {2, 2, 1},
                       {3, 2, 1.5},
                       {4, 2, 2},
                       {6, 4, 1.5},
                       {8, 4, 2},
                       {12, 4, 3},
                       {16, 4, 4},
                       {17, 2, 8.5},
                       {32, 8, 4},
                       {1024, 32, 32}}) {
    const GradientMean mean(Mesh{1, c.ranks}, at::kHalf);
    EXPECT_EQ(mean.before(), c.before) << c.ranks;
    EXPECT_EQ(mean.after(), c.after) << c.ranks;
    // Replicas count like shards.
    if (c.ranks % 2 == 0) {
      EXPECT_EQ(GradientMean(Mesh{2, c.ranks / 2}, at::kHalf).before(), c.before) << c.ranks;
    }
  }
}

TEST(GradientMeanTest, LeavesOtherDtypesToTheCollectives) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const GradientMean mean(Mesh{2, 4}, dtype);
    EXPECT_EQ(mean.before(), 1);
    EXPECT_EQ(mean.after(), 1);
  }
}

}  // namespace
}  // namespace accel::train
