#include "core/launch/cluster/cluster.hpp"

#include <gtest/gtest.h>

namespace accel::launch {
namespace {

TEST(ClusterTest, TheEarliestFailureIsTheRuns) {
  const Verdict verdict = verdict_of({{ExitCode::kWorkerFailed, "second", 20},
                                      {ExitCode::kSuccess, "", 0},
                                      {ExitCode::kWorkerFailed, "first", 10}});
  EXPECT_EQ(verdict.code, ExitCode::kWorkerFailed);
  EXPECT_EQ(verdict.report, "first");
}

TEST(ClusterTest, WithoutAReportTheCodesMustAgree) {
  EXPECT_EQ(verdict_of({{}, {}}).code, ExitCode::kSuccess);
  EXPECT_EQ(verdict_of({{ExitCode::kPreempted, "", 0}, {ExitCode::kPreempted, "", 0}}).code,
            ExitCode::kPreempted);
  EXPECT_EQ(verdict_of({{}, {ExitCode::kTerminated, "", 0}}).code, ExitCode::kTerminated);
  const Verdict mixed = verdict_of({{}, {ExitCode::kPreempted, "", 0}});
  EXPECT_EQ(mixed.code, ExitCode::kWorkerFailed);
  EXPECT_EQ(mixed.report, "some machines stopped for preemption and others did not");
}

}  // namespace
}  // namespace accel::launch
