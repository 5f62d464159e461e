#include "core/launch/agent/hang_report.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/launch/agent/outside.hpp"

namespace accel::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kNow = 1000 * kSecond;

/// Collective number `number` of a group of all ranks, which began `ago` seconds ago.
FlightEvent collective(std::uint64_t number, const char* unit, int ago, bool waits, bool ended,
                       FlightOp op = FlightOp::kAllGather) {
  FlightEvent event;
  event.number = number;
  event.op = op;
  event.begun_ns = kNow - ago * kSecond;
  event.waited_ns = waits ? event.begun_ns : 0;
  event.ended_ns = ended ? event.begun_ns : 0;
  event.in_group = number;
  event.bytes = 2048;
  event.group = {"world", 0, 1, 4, number};
  event.unit = unit;
  return event;
}

FlightEvent forward(const char* unit, int ago) {
  FlightEvent event;
  event.number = 99;
  event.begun_ns = kNow - ago * kSecond;
  event.unit = unit;
  return event;
}

RankSight rank(int number, std::vector<FlightEvent> events) {
  RankSight sight;
  sight.record.rank = number;
  sight.record.pid = 100 + number;
  sight.record.host = "a";
  sight.record.step = 7;
  sight.record.events = std::move(events);
  sight.seen_ns = kNow;
  sight.state = "sleeping in futex, 3 threads";
  return sight;
}

TEST(HangReportTest, NamesWhoDidNotJoin) {
  const std::vector<RankSight> ranks = {
      rank(0, {collective(1, "a", 50, true, true), collective(2, "b", 40, true, false)}),
      rank(1, {collective(1, "a", 50, true, true), forward("a", 45)}),
      rank(2, {collective(1, "a", 50, true, true), collective(2, "b", 42, true, false)}),
      rank(3, {collective(1, "a", 50, true, true), collective(2, "b", 41, true, false)})};
  EXPECT_THAT(findings(ranks), ElementsAre("rank 1 did not join: ranks 0, 2-3 wait in all-gather 2 of 'b' "
                                           "(2.05 kB, group world) for 42 s"));
  const std::string table = table_of_ranks(ranks, 0);
  EXPECT_THAT(
      table, HasSubstr("rank 1, step 7: is in forward of 'a' for 45 s\n  a, process 101: sleeping in futex"));
  EXPECT_THAT(table,
              HasSubstr("rank 3, step 7: waits in all-gather 2 of 'b' (2.05 kB, group world) for 41 s\n"));
}

TEST(HangReportTest, ARankThatHasIssuedACollectiveHasJoined) {
  const std::vector<RankSight> ranks = {rank(0, {collective(2, "b", 40, true, false)}),
                                        rank(1, {collective(2, "b", 40, false, false), forward("a", 39)}),
                                        rank(2, {collective(2, "b", 40, true, false)}),
                                        rank(3, {collective(2, "b", 40, true, false)})};
  EXPECT_THAT(findings(ranks),
              ElementsAre(HasSubstr("all ranks joined, and it does not end: ranks 0, 2-3 wait")));
}

TEST(HangReportTest, NamesTheFirstDifference) {
  const std::vector<RankSight> ranks = {
      rank(0, {collective(1, "a", 50, true, true), collective(2, "b", 40, false, false),
               collective(3, "c", 40, true, false)}),
      rank(1, {collective(1, "a", 50, true, true),
               collective(2, "b", 40, true, false, FlightOp::kReduceScatter)})};
  EXPECT_THAT(findings(ranks),
              ElementsAre("the ranks disagree: rank 0 called all-gather 2 of 'b' (2.05 kB, group "
                          "world), and rank 1 reduce-scatter 2 of 'b' (2.05 kB, group world)"));
}

TEST(HangReportTest, RanksOfOtherGroupsAreNotMissing) {
  FlightEvent event = collective(5, "b", 40, true, false);
  event.group = {"shard/0", 0, 2, 2, 5};  // Ranks 0 and 2.
  EXPECT_THAT(findings({rank(0, {event}), rank(1, {forward("a", 1)}), rank(2, {}), rank(3, {})}),
              ElementsAre(HasSubstr("rank 2 did not join: rank 0 waits in all-gather 5")));
}

TEST(HangReportTest, AStoppedRankIsNamedAndARankThatHasEndedShown) {
  RankSight stopped = rank(0, {});
  stopped.state = "stopped, 3 threads";
  RankSight ended = rank(1, {});
  ended.state = "";
  EXPECT_THAT(findings({stopped, ended}), ElementsAre("rank 0 is stopped, by a signal or a debugger"));
  EXPECT_THAT(table_of_ranks({ended}, 3), HasSubstr("process 101: has ended"));
}

TEST(HangReportTest, WhatAnotherMachineGetsSaysTheSame) {
  RankSight sight = rank(1, {collective(2, "b", 40, true, false)});
  sight.stacks =
      "PID 1 - process\nTID 1:\n#0  0x00007f2 wait_here\n#1  0x00007f3 main\nTID 2:\n#0  0x0f other\n";
  sight.silent_s = 12;
  const Hang hang{30, true, {sight}};
  const std::string report = report_of(hang);
  EXPECT_THAT(report, HasSubstr("the run hangs: no progress for 30 s (launch.hang_timeout)\n"));
  EXPECT_THAT(report, HasSubstr("\n      wait_here\n      main"));
  EXPECT_THAT(report, ::testing::Not(HasSubstr("other")));
  EXPECT_EQ(report_of(hang_from_json(to_json(hang))), report);
  EXPECT_THROW(hang_from_json({{"ranks", 1}}), nlohmann::json::exception);
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

TEST(HangReportTest, RangesOfRanks) {
  EXPECT_EQ(text_of_ranks({5, 0, 2, 3, 4}), "0, 2-5");
  EXPECT_EQ(text_of_ranks({}), "");
}

}  // namespace
}  // namespace accel::launch
