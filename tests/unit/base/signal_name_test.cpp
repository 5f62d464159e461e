#include "base/signal_name.hpp"

#include <gtest/gtest.h>

#include <csignal>
#include <cstring>

namespace accel {
namespace {

TEST(SignalNameTest, IsWhatTheCLibrarySays) {
  for (int signal = -1; signal <= SIGRTMAX + 1; ++signal)
    EXPECT_STREQ(signal_name(signal), ::sigabbrev_np(signal)) << signal;
}

}  // namespace
}  // namespace accel
