#include "core/launch/agent/attempt_end.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.hpp"

namespace accel::launch {
namespace {

using ::testing::HasSubstr;

TEST(AttemptEndTest, TheEarliestFailureIsTheRuns) {
  AttemptEnd first{ExitCode::kWorkerFailed, "first", 1};
  first.failed_at_ns = 10;
  AttemptEnd second{ExitCode::kWorkerFailed, "second", 2};
  second.failed_at_ns = 20;
  second.was_interrupted = true;
  const AttemptEnd end = end_of_all({second, {}, first});
  EXPECT_EQ(end.code, ExitCode::kWorkerFailed);
  EXPECT_EQ(end.report, "first");
  EXPECT_EQ(end.restarts_without_progress, 1);
  EXPECT_TRUE(end.was_interrupted);
}

TEST(AttemptEndTest, AHangIsTheOneOfAllMachines) {
  AttemptEnd first{ExitCode::kWorkerFailed, "a hang here"};
  first.hang = Hang{30, false, std::vector<RankStatus>(1)};
  first.hang->ranks[0].record.rank = 0;
  AttemptEnd second = first;
  second.hang->ranks[0].record.rank = 1;
  const AttemptEnd end = end_of_all({first, {}, second});
  EXPECT_EQ(end.code, ExitCode::kWorkerFailed);
  EXPECT_THAT(end.report, HasSubstr("rank 0"));
  EXPECT_THAT(end.report, HasSubstr("rank 1"));
  EXPECT_FALSE(end.hang);
}

TEST(AttemptEndTest, OtherMachinesReadWhatWasWritten) {
  AttemptEnd end{ExitCode::kWorkerFailed, "a report", 1, true, true};
  end.failed_at_ns = -5;
  end.hang = Hang{30, true, std::vector<RankStatus>(2)};
  const AttemptEnd read = attempt_end_from_json(to_json(end));
  EXPECT_EQ(read.code, end.code);
  EXPECT_EQ(read.report, end.report);
  EXPECT_EQ(read.restarts_without_progress, 1);
  EXPECT_TRUE(read.was_interrupted);
  EXPECT_TRUE(read.found_corrupt);
  EXPECT_EQ(read.failed_at_ns, -5);
  ASSERT_TRUE(read.hang);
  EXPECT_EQ(read.hang->ranks.size(), 2U);
}

TEST(AttemptEndTest, NumbersOfAnotherMachineAreChecked) {
  const nlohmann::json good = to_json(AttemptEnd{});
  EXPECT_EQ(attempt_end_from_json(good).code, ExitCode::kSuccess);
  const std::pair<const char*, nlohmann::json> wrong[] = {{"code", 8},
                                                          {"code", -1},
                                                          {"code", 0.5},
                                                          {"code", 4294967296},
                                                          {"failed_at_ns", 1e300},
                                                          {"restarts_without_progress", 3},
                                                          {"was_interrupted", 1},
                                                          {"report", 7}};
  for (const auto& [name, value] : wrong) {
    nlohmann::json document = good;
    document[name] = value;
    EXPECT_THROW(static_cast<void>(attempt_end_from_json(document)), Error) << name << " " << value;
  }
}

TEST(AttemptEndTest, WithoutAReportTheCodesMustAgree) {
  EXPECT_EQ(end_of_all({{}, {}}).code, ExitCode::kSuccess);
  EXPECT_EQ(end_of_all({{ExitCode::kPreempted, ""}, {ExitCode::kPreempted, ""}}).code, ExitCode::kPreempted);
  EXPECT_EQ(end_of_all({{}, {ExitCode::kTerminated, ""}}).code, ExitCode::kTerminated);
  const AttemptEnd mixed = end_of_all({{}, {ExitCode::kPreempted, ""}});
  EXPECT_EQ(mixed.code, ExitCode::kWorkerFailed);
  EXPECT_EQ(mixed.report, "some machines stopped for preemption and others did not");
}

}  // namespace
}  // namespace accel::launch
