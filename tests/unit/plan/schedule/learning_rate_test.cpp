#include "plan/schedule/learning_rate.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"

namespace accel {
namespace {

config::SchedulerConfig schedule(const std::string& type, std::int64_t warmup, double floor = 0) {
  config::SchedulerConfig config;
  config.type = type;
  config.warmup_steps = warmup;
  config.min_lr_ratio = floor;
  return config;
}

// The expected values are what transformers' get_scheduler gives.
TEST(ScheduleTest, CosineWithWarmup) {
  const auto config = schedule("cosine", 4);
  EXPECT_DOUBLE_EQ(lr_factor(config, 0, 20, 0.5), 0);
  EXPECT_DOUBLE_EQ(lr_factor(config, 1, 20, 0.5), 0.25);
  EXPECT_DOUBLE_EQ(lr_factor(config, 4, 20, 0.5), 1);
  EXPECT_DOUBLE_EQ(lr_factor(config, 12, 20, 0.5), 0.5);
  EXPECT_NEAR(lr_factor(config, 19, 20, 0.5), 0.009607359798384785, 1e-15);
  EXPECT_NEAR(lr_factor(config, 20, 20, 0.5), 0, 1e-15);
}

TEST(ScheduleTest, CosineToAFloor) {
  const auto config = schedule("cosine", 0, 0.1);
  EXPECT_DOUBLE_EQ(lr_factor(config, 0, 10, 0.5), 1);
  EXPECT_DOUBLE_EQ(lr_factor(config, 5, 10, 0.5), 0.55);
  EXPECT_NEAR(lr_factor(config, 10, 10, 0.5), 0.1, 1e-15);
}

TEST(ScheduleTest, Linear) {
  const auto config = schedule("linear", 2);
  EXPECT_DOUBLE_EQ(lr_factor(config, 1, 10, 0.5), 0.5);
  EXPECT_DOUBLE_EQ(lr_factor(config, 6, 10, 0.5), 0.5);
  EXPECT_DOUBLE_EQ(lr_factor(config, 12, 10, 0.5), 0);
}

TEST(ScheduleTest, Constants) {
  EXPECT_DOUBLE_EQ(lr_factor(schedule("constant", 5), 0, 10, 0.5), 1);
  EXPECT_DOUBLE_EQ(lr_factor(schedule("constant_with_warmup", 5), 2, 10, 0.5), 0.4);
  EXPECT_DOUBLE_EQ(lr_factor(schedule("constant_with_warmup", 5), 9, 10, 0.5), 1);
}

TEST(ScheduleTest, AnUnknownTypeIsAnError) {
  EXPECT_THROW(lr_factor(schedule("sawtooth", 0), 0, 10, 0.5), Error);
}

}  // namespace
}  // namespace accel
