#include "train/loop/profile.hpp"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <cstdlib>

#include "temp_dir.hpp"

namespace accel::train {
namespace {

using accel::testing::TempDir;

TEST(StepProfilerTest, AProfilerThatCannotBeStoppedIsAWarningInTheDestructor) {
  const auto destroy = [] {
    const TempDir dir;
    {
      StepProfiler profiler(config::ProfileConfig{1, 2}, dir.path(), 0, at::kCPU);
      profiler.begin_step(1);
      // The profiler has stopped already, so that stopping it is an error.
      (void)torch::autograd::profiler::disableProfiler();
    }
    std::exit(0);
  };
  EXPECT_EXIT(destroy(), ::testing::ExitedWithCode(0), "the profiler of rank 0 could not be stopped");
}

}  // namespace
}  // namespace accel::train
