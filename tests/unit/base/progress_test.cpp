#include "base/progress.hpp"

#include <gtest/gtest.h>

namespace accel {
namespace {

TEST(ProgressTest, SaysHowFarHowFastAndHowLong) {
  EXPECT_EQ(progress_text("merging", 250'000'000, 1'000'000'000, 0.5),
            "merging  25%  250 MB of 1.00 GB  500 MB/s  1.5 s left");
  EXPECT_EQ(progress_text("merging", 1000, 1000, 1), "merging  100%  1.00 kB of 1.00 kB  1.00 kB/s");
}

TEST(ProgressTest, HasNoRateAtTheStart) {
  EXPECT_EQ(progress_text("merging", 0, 1000, 0), "merging  0%  0 B of 1.00 kB");
  EXPECT_EQ(progress_text("merging", 0, 0, 0), "merging  100%  0 B of 0 B");
}

TEST(ProgressTest, IsSilentForShortWork) {
  ::testing::internal::CaptureStderr();
  {
    Progress progress("merging", 10, Progress::Mode::kAuto);
    progress.add(10);
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace accel
