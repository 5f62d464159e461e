#include "core/launch/restart.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::launch {
namespace {

using ::testing::HasSubstr;

TEST(RestartsTest, NobodyAskedForAny) {
  const NextStep next = Restarts(0).after(2, true, true);
  EXPECT_FALSE(next.is_restart);
  EXPECT_EQ(next.why_not, "");
}

TEST(RestartsTest, ProgressAllowsAsManyAsAreAskedFor) {
  Restarts restarts(3);
  for (int i = 1; i <= 3; ++i) {
    const NextStep next = restarts.after(2, true, true);
    EXPECT_TRUE(next.is_restart);
    EXPECT_EQ(next.pause.count(), 0);
    EXPECT_EQ(restarts.count(), i);
  }
  EXPECT_THAT(restarts.after(2, true, true).why_not, HasSubstr("restarted 3 times"));
}

TEST(RestartsTest, TwoInARowWithoutProgressEndTheRun) {
  Restarts restarts(100);
  EXPECT_TRUE(restarts.after(2, false, true).is_restart);
  const NextStep second = restarts.after(2, false, true);
  EXPECT_TRUE(second.is_restart);
  EXPECT_EQ(second.pause.count(), 1000);
  const NextStep third = restarts.after(2, false, true);
  EXPECT_FALSE(third.is_restart);
  EXPECT_EQ(third.why_not, "2 restarts in a row without progress");
}

TEST(RestartsTest, ProgressInBetweenCounts) {
  Restarts restarts(100);
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(restarts.after(2, false, true).is_restart);
    EXPECT_TRUE(restarts.after(2, false, true).is_restart);
    EXPECT_TRUE(restarts.after(2, true, true).is_restart);
  }
}

TEST(RestartsTest, MemoryThatIsMissingAgainEndsTheRun) {
  Restarts restarts(100);
  EXPECT_TRUE(restarts.after(1, false, true).is_restart);
  EXPECT_EQ(restarts.after(1, false, true).why_not, "it has been restarted without progress");
}

TEST(RestartsTest, AFailureThatComesAgainIsNotTriedAgain) {
  Restarts restarts(100);
  EXPECT_EQ(restarts.after(0, true, true).why_not, "a restart would fail in the same way");
  EXPECT_EQ(restarts.count(), 0);
}

TEST(RestartsTest, ProgramsAreRestartedWithPausesThatGrow) {
  Restarts restarts(100);
  std::vector<std::int64_t> pauses;
  for (int i = 0; i < 9; ++i) pauses.push_back(restarts.after(2, false, false).pause.count());
  EXPECT_THAT(pauses, ::testing::ElementsAre(0, 1000, 2000, 4000, 8000, 16000, 32000, 32000, 32000));
}

}  // namespace
}  // namespace accel::launch
