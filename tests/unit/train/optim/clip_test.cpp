#include "train/optim/clip.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace accel::train {
namespace {

double error_of(const at::Tensor& values) {
  const double exact = at::linalg_vector_norm(values.to(at::kDouble), 2).item<double>();
  return std::abs(norm_of(values).item<double>() - exact) / exact;
}

// One sum in float32 over all elements is off by 2e-5 here, and by more for each shard that is longer.
TEST(NormTest, OfALongShardIsExact) {
  at::manual_seed(1);
  for (const std::int64_t numel : {std::int64_t{1}, std::int64_t{4095}, std::int64_t{4096},
                                   std::int64_t{4097}, std::int64_t{3'000'001}}) {
    // Each of at most 4096 squares adds half a unit in the last place of the row's sum at most.
    EXPECT_LT(error_of(at::randn({numel}) * 1e-3), 4096 * std::numeric_limits<float>::epsilon() / 64)
        << numel;
  }
  EXPECT_LT(error_of(at::full({20'000'000}, 0.5)), 1e-6);
}

TEST(NormTest, IsZeroWithoutElementsAndNotFiniteIfAnElementIsNot) {
  EXPECT_EQ(norm_of(at::empty({0})).item<double>(), 0);
  at::Tensor values = at::ones({10'000});
  values[5] = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(std::isinf(norm_of(values).item<double>()));
  values[9'999] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(norm_of(values).item<double>()));
}

}  // namespace
}  // namespace accel::train
