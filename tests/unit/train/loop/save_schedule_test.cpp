#include "train/loop/save_schedule.hpp"

#include <gtest/gtest.h>

namespace accel::train {
namespace {

using namespace std::chrono_literals;

TEST(SaveScheduleTest, EverySoManySteps) {
  config::CheckpointConfig config;
  config.every = 3;
  const SaveSchedule schedule(config);
  EXPECT_FALSE(schedule.is_due(2, 0, false));
  EXPECT_TRUE(schedule.is_due(3, 0, false));
  EXPECT_TRUE(schedule.is_due(6, 0, true));
}

TEST(SaveScheduleTest, EverySoManyMinutesOfRank0) {
  config::CheckpointConfig config;
  config.every_minutes = 2;
  SaveSchedule schedule(config);
  const auto start = SaveSchedule::Clock::now();
  schedule.began(start);
  EXPECT_EQ(schedule.vote(0, start + 119s), 0);
  EXPECT_EQ(schedule.vote(0, start + 120s), 1);
  EXPECT_EQ(schedule.vote(1, start + 120s), 0);
  EXPECT_TRUE(schedule.is_due(7, 1, false));
  EXPECT_FALSE(schedule.is_due(7, 0, false));
  schedule.began(start + 120s);
  EXPECT_EQ(schedule.vote(0, start + 121s), 0);
}

TEST(SaveScheduleTest, ContinuousMeansAsSoonAsTheLastHasEnded) {
  config::CheckpointConfig config;
  config.continuously = true;
  const SaveSchedule schedule(config);
  EXPECT_TRUE(schedule.is_due(1, 0, false));
  EXPECT_FALSE(schedule.is_due(2, 0, true));
  EXPECT_TRUE(schedule.is_due(3, 0, false));
}

}  // namespace
}  // namespace accel::train
