#include "core/launch/hang/hang_report.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/launch/hang/outside.hpp"
#include "made_records.hpp"

namespace accel::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using namespace made;

TEST(HangReportTest, WhatAnotherMachineGetsSaysTheSame) {
  RankStatus status = rank(1, {collective(2, "b", 40, true, false)});
  status.stacks =
      "PID 1 - process\nTID 1:\n#0  0x00007f2 wait_here\n#1  0x00007f3 main\nTID 2:\n#0  0x0f other\n";
  status.silent_s = 12;
  const Hang hang{30, true, {status}};
  const std::string report = report_of(hang);
  EXPECT_THAT(report, HasSubstr("the run hangs: no progress for 30 s (launch.hang_timeout)\n"));
  EXPECT_THAT(report, HasSubstr("\n      wait_here\n      main"));
  EXPECT_THAT(report, ::testing::Not(HasSubstr("other")));
  EXPECT_EQ(report_of(hang_from_json(to_json(hang))), report);
  EXPECT_THROW(hang_from_json({{"ranks", 1}}), nlohmann::json::exception);
}

TEST(HangReportTest, ARankThatWaitsForItsGpuIsShown) {
  const std::string table =
      table_of_ranks({rank(0, {enqueued(1, "a", 50), enqueued(2, "b", 49), host_sync(42)}),
                      rank(1, {enqueued(1, "a", 50), forward("a", 45)})},
                     0);
  EXPECT_THAT(table, HasSubstr("rank 0, step 7: is in host sync for 42 s\n"));
  EXPECT_THAT(table, HasSubstr("rank 1, step 7: is in forward of 'a' for 45 s\n"));
}

// The collective that hangs may be as old as the record.
TEST(HangReportTest, AnotherMachineGetsAllCollectivesThatWereEnqueued) {
  std::vector<FlightEvent> events;
  for (int number = 1; number <= 200; ++number)
    events.push_back(enqueued(static_cast<std::uint64_t>(number), "a", 300 - number, /*ended=*/number < 7));
  const Hang hang{30, true, {rank(0, events), rank(1, {events.begin(), events.begin() + 10})}};
  const Hang got = hang_from_json(to_json(hang));
  EXPECT_EQ(got.ranks[0].record.events.size(), 200U);
  EXPECT_TRUE(got.ranks[0].record.events[6].group.enqueues);
  EXPECT_THAT(report_of(got), HasSubstr("rank 1 did not join: rank 0 enqueued all-gather 11 of 'a'"));
  for (FlightEvent& event : events) event.group.enqueues = false;
  EXPECT_EQ(hang_from_json(to_json(Hang{30, true, {rank(0, events)}})).ranks[0].record.events.size(), 32U);
}

TEST(HangReportTest, StacksOfAllTools) {
  EXPECT_THAT(first_stack("PID 1\nTID 1:\n#0  0x01 f(int)\n#1  0x02\n", 5),
              ElementsAre("f(int)", "(unknown)"));
  EXPECT_THAT(
      first_stack("[New LWP 3]\nThread 2 (LWP 3):\n#0  0x01 in poll () from libc.so\n#1  main ()\n", 5),
      ElementsAre("poll () from libc.so", "#1  main ()"));
  EXPECT_THAT(
      first_stack("Process 1: python a.py\nThread 1 (idle): \"MainThread\"\n    wait (a.py:3)\n    <module> "
                  "(a.py:9)\nThread 2 (idle)\n    run (b.py:1)\n",
                  5),
      ElementsAre("wait (a.py:3)", "<module> (a.py:9)"));
  EXPECT_THAT(first_stack("no stack: install elfutils\n", 5), ElementsAre("no stack: install elfutils"));
  EXPECT_THAT(first_stack("", 5), IsEmpty());
}

}  // namespace
}  // namespace accel::launch
