#include "core/launch/agent/signals.hpp"

#include <gtest/gtest.h>

#include <csignal>

namespace accel::launch {
namespace {

TEST(SignalQueueTest, SaysWhichSignalNobodyHasTaken) {
  LateSignals late;
  { const SignalQueue queue(late); }
  EXPECT_EQ(late.interrupt, 0);
  EXPECT_FALSE(late.save);
  {
    SignalQueue queue(late);
    ::raise(SIGINT);
    ASSERT_EQ(queue.next()->signal, SIGINT);
  }
  EXPECT_EQ(late.interrupt, 0);
  {
    const SignalQueue queue(late);
    ::raise(SIGTERM);
    ::raise(SIGUSR1);
  }
  EXPECT_EQ(late.interrupt, SIGTERM);
  EXPECT_TRUE(late.save);
}

}  // namespace
}  // namespace accel::launch
