#include "core/launch/hang/outside.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

namespace accel::launch {
namespace {

TEST(OutsideTest, AProcessThatNobodyHasReapedHasEnded) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(0);
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(::kill(child, 0), 0) << "the child is not a zombie";
  EXPECT_EQ(state_of_process(child), "");
  EXPECT_TRUE(is_zombie(child));
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
}

TEST(OutsideTest, SaysWhatALiveProcessDoes) {
  EXPECT_THAT(state_of_process(::getpid()), ::testing::StartsWith("running"));
  EXPECT_FALSE(is_zombie(::getpid()));
  EXPECT_FALSE(is_zombie(-1));
}

}  // namespace
}  // namespace accel::launch
