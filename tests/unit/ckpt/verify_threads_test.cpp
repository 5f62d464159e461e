#include "ckpt/verify_threads.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>

namespace accel::ckpt {
namespace {

TEST(RunOnThreadsTest, RunsTheWorkOnAsManyAsAskedFor) {
  for (const unsigned threads : {1U, 2U, 5U}) {
    std::atomic<unsigned> runs = 0;
    run_on_threads(threads, [&] { ++runs; });
    EXPECT_EQ(runs, threads);
  }
}

TEST(RunOnThreadsTest, ThrowsWhatOneThrewWhenAllAreDone) {
  std::atomic<unsigned> runs = 0;
  const auto work = [&] {
    if (++runs == 2) throw std::runtime_error("second");
  };
  EXPECT_THROW(run_on_threads(4, work), std::runtime_error);
  EXPECT_EQ(runs, 4U);
}

TEST(RunOnThreadsTest, DefaultIsTwoToFour) {
  EXPECT_GE(default_threads(), 2U);
  EXPECT_LE(default_threads(), 4U);
}

}  // namespace
}  // namespace accel::ckpt
