#include "plan/schedule/grad_scaler.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "base/error.hpp"

namespace accel {
namespace {

TEST(GradScalerTest, HalvesAfterAnOverflowAndDoublesAfterManyStepsWithout) {
  GradScaler scaler({.growth_interval = 3});
  EXPECT_EQ(scaler.scale(), 65536);
  EXPECT_EQ(scaler.inverse(), 0x1p-16);
  scaler.update(false, 1);
  scaler.update(false, 2);
  EXPECT_EQ(scaler.state().growth_tracker, 2);
  scaler.update(true, 3);
  EXPECT_EQ(scaler.scale(), 32768);
  EXPECT_EQ(scaler.state().growth_tracker, 0);  // Counted anew.
  for (int step = 4; step < 7; ++step) {
    EXPECT_EQ(scaler.scale(), 32768);
    scaler.update(false, step);
  }
  EXPECT_EQ(scaler.scale(), 65536);
  EXPECT_EQ(scaler.state().growth_tracker, 0);
}

TEST(GradScalerTest, DoesNotGrowToInfinity) {
  GradScaler scaler({.init_scale = 0x1p127, .growth_interval = 1});
  scaler.update(false, 1);
  EXPECT_EQ(scaler.scale(), 0x1p127);
  EXPECT_EQ(scaler.state().growth_tracker, 0);
}

TEST(GradScalerTest, IsAFloat32AsInTorch) {
  GradScaler scaler({.init_scale = 1000.1, .backoff_factor = 0.3});
  EXPECT_EQ(scaler.scale(), 1000.1F);
  EXPECT_EQ(scaler.inverse(), static_cast<float>(1 / static_cast<double>(1000.1F)));
  scaler.update(true, 1);
  EXPECT_EQ(scaler.scale(), static_cast<float>(1000.1F * 0.3));
}

TEST(GradScalerTest, GivesUpWhereNoScaleHelps) {
  GradScaler scaler({});
  std::int64_t step = 0;
  // 65536 is 2^16: 30 times until 2^-14.
  while (step < 30) scaler.update(true, ++step);
  EXPECT_EQ(scaler.scale(), config::kLeastScale);
  try {
    scaler.update(true, 31);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kDiverged);
    EXPECT_EQ(
        error.message(),
        "step 31: gradients are infinite or NaN in float16, although the loss is multiplied by only 6.1e-05");
  }
}

}  // namespace
}  // namespace accel
