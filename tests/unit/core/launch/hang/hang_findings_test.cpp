#include "core/launch/hang/hang_findings.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "made_records.hpp"

namespace accel::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using namespace made;

TEST(HangFindingsTest, NamesWhoDidNotJoin) {
  const std::vector<RankStatus> ranks = {
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

TEST(HangFindingsTest, ShortWaitsArePassedOver) {
  using std::chrono::seconds;
  std::vector<RankStatus> ranks = {rank(0, {collective(2, "b", 3, true, false)}), rank(1, {forward("a", 9)}),
                                   rank(2, {collective(2, "b", 5, true, false)}), rank(3, {})};
  EXPECT_THAT(findings(ranks, seconds(5)),
              ElementsAre(HasSubstr("ranks 1, 3 did not join: ranks 0, 2 wait")));
  EXPECT_THAT(findings(ranks, seconds(6)), IsEmpty());
  ranks[1].state = "stopped, 3 threads";
  EXPECT_THAT(findings(ranks, seconds(6)), ElementsAre("rank 1 is stopped, by a signal or a debugger"));
  ranks[1] = rank(1, {collective(2, "b", 0, false, false, FlightOp::kReduceScatter)});
  EXPECT_THAT(findings(ranks, seconds(6)), ElementsAre(HasSubstr("the ranks disagree")));
}

TEST(HangFindingsTest, ShortWaitsForGpusArePassedOver) {
  using std::chrono::seconds;
  const std::vector<FlightEvent> open = {enqueued(1, "a", 8), host_sync(7)};
  const std::vector<RankStatus> missing = {rank(0, open), rank(1, {}), rank(2, open), rank(3, open)};
  EXPECT_THAT(findings(missing, seconds(8)), ElementsAre(HasSubstr("rank 1 did not join")));
  EXPECT_THAT(findings(missing, seconds(9)), IsEmpty());
  const std::vector<RankStatus> joined = {rank(0, open), rank(1, open), rank(2, open), rank(3, open)};
  EXPECT_THAT(findings(joined, seconds(7)), ElementsAre(HasSubstr("all ranks joined")));
  EXPECT_THAT(findings(joined, seconds(8)), IsEmpty());
}

TEST(HangFindingsTest, ARankThatHasIssuedACollectiveHasJoined) {
  const std::vector<RankStatus> ranks = {rank(0, {collective(2, "b", 40, true, false)}),
                                         rank(1, {collective(2, "b", 40, false, false), forward("a", 39)}),
                                         rank(2, {collective(2, "b", 40, true, false)}),
                                         rank(3, {collective(2, "b", 40, true, false)})};
  EXPECT_THAT(findings(ranks),
              ElementsAre(HasSubstr("all ranks joined, and it does not end: ranks 0, 2-3 wait")));
}

TEST(HangFindingsTest, NamesTheFirstDifference) {
  const std::vector<RankStatus> ranks = {
      rank(0, {collective(1, "a", 50, true, true), collective(2, "b", 40, false, false),
               collective(3, "c", 40, true, false)}),
      rank(1, {collective(1, "a", 50, true, true),
               collective(2, "b", 40, true, false, FlightOp::kReduceScatter)})};
  EXPECT_THAT(findings(ranks),
              ElementsAre("the ranks disagree: rank 0 called all-gather 2 of 'b' (2.05 kB, group "
                          "world), and rank 1 reduce-scatter 2 of 'b' (2.05 kB, group world)"));
}

TEST(HangFindingsTest, RanksOfOtherGroupsAreNotMissing) {
  FlightEvent event = collective(5, "b", 40, true, false);
  event.group = {"shard/0", 0, 2, 2, 5};  // Ranks 0 and 2.
  EXPECT_THAT(findings({rank(0, {event}), rank(1, {forward("a", 1)}), rank(2, {}), rank(3, {})}),
              ElementsAre(HasSubstr("rank 2 did not join: rank 0 waits in all-gather 5")));
}

TEST(HangFindingsTest, AStoppedRankIsNamedAndARankThatHasEndedShown) {
  RankStatus stopped = rank(0, {});
  stopped.state = "stopped, 3 threads";
  RankStatus ended = rank(1, {});
  ended.state = "";
  EXPECT_THAT(findings({stopped, ended}), ElementsAre("rank 0 is stopped, by a signal or a debugger"));
  EXPECT_THAT(table_of_ranks({ended}, 3), HasSubstr("process 101: has ended"));
}

TEST(HangFindingsTest, RangesOfRanks) {
  EXPECT_EQ(text_of_ranks({5, 0, 2, 3, 4}), "0, 2-5");
  EXPECT_EQ(text_of_ranks({}), "");
}

TEST(HangFindingsTest, NamesWhoDidNotEnqueueWhatOthersDid) {
  const auto others = [](int number) {
    return rank(number,
                {enqueued(1, "a", 50, /*ended=*/true), host_sync(49, /*ended=*/true), enqueued(2, "b", 48),
                 enqueued(3, "c", 47 - number), enqueued(4, "d", 40), host_sync(39)});
  };
  const std::vector<RankStatus> ranks = {
      others(0),
      rank(1, {enqueued(1, "a", 50, true), host_sync(49, true), enqueued(2, "b", 48), forward("b", 47)}),
      others(2), others(3)};
  EXPECT_THAT(findings(ranks), ElementsAre("rank 1 did not join: ranks 0, 2-3 enqueued all-gather 3 of 'c' "
                                           "(2.05 kB, group world) 47 s ago"));
}

TEST(HangFindingsTest, IfAllRanksWaitForTheirGpusTheFirstThatNoRankSawEndIsNamed) {
  // Rank 2 has had a host sync of its own between the second and the third.
  const std::vector<FlightEvent> open = {enqueued(1, "a", 50, true), enqueued(2, "b", 48),
                                         enqueued(3, "c", 47), enqueued(4, "d", 46), host_sync(42)};
  std::vector<FlightEvent> later = open;
  later[1].ended_ns = kNow;
  EXPECT_THAT(
      findings({rank(0, open), rank(1, open), rank(2, later), rank(3, open)}),
      ElementsAre(
          "all ranks joined, and the GPUs have not finished: ranks 0-3 are in a host sync for 42 s; the "
          "first collective that may be open is all-gather 3 of 'c' (2.05 kB, group world)"));
}

TEST(HangFindingsTest, NothingIsSaidOfCollectivesThatHaveEndedOnARank) {
  std::vector<FlightEvent> open = {enqueued(1, "a", 50), enqueued(2, "b", 48), host_sync(42)};
  std::vector<FlightEvent> ended = open;
  for (FlightEvent& event : ended) event.ended_ns = kNow;
  ended.push_back(forward("a", 41));
  EXPECT_THAT(findings({rank(0, open), rank(1, open), rank(2, ended), rank(3, open)}), IsEmpty());
  // It goes on to the next one, which the others do not reach.
  ended.push_back(enqueued(3, "c", 40));
  EXPECT_THAT(
      findings({rank(0, open), rank(1, open), rank(2, ended), rank(3, open)}),
      ElementsAre("ranks 0-1, 3 did not join: rank 2 enqueued all-gather 3 of 'c' (2.05 kB, group world) "
                  "40 s ago"));
}

TEST(HangFindingsTest, RanksThatComputeAndHaveEnqueuedTheSameDoNotHang) {
  const std::vector<FlightEvent> events = {enqueued(1, "a", 1), enqueued(2, "b", 1), forward("a", 1)};
  EXPECT_THAT(findings({rank(0, events), rank(1, events), rank(2, events), rank(3, events)}), IsEmpty());
}

TEST(HangFindingsTest, ARankThatHasEndedDidNotJoin) {
  RankStatus ended = rank(3, {enqueued(1, "a", 50)});
  ended.state = "";
  const std::vector<FlightEvent> events = {enqueued(1, "a", 50), enqueued(2, "b", 48), host_sync(42)};
  EXPECT_THAT(findings({rank(0, events), rank(1, events), rank(2, events), ended}),
              ElementsAre(HasSubstr("rank 3 did not join: ranks 0-2 enqueued all-gather 2 of 'b'")));
}

TEST(HangFindingsTest, NamesTheFirstDifferenceOfWhatWasEnqueued) {
  FlightEvent other = enqueued(2, "b", 40);
  other.op = FlightOp::kReduceScatter;
  EXPECT_THAT(
      findings({rank(0, {enqueued(1, "a", 50), enqueued(2, "b", 40), enqueued(3, "c", 39), host_sync(38)}),
                rank(1, {enqueued(1, "a", 50), other, host_sync(39)})}),
      ElementsAre("the ranks disagree: rank 0 called all-gather 2 of 'b' (2.05 kB, group world), and "
                  "rank 1 reduce-scatter 2 of 'b' (2.05 kB, group world)"));
}

/// Collectives from number `first` to `last`, as a record has them that was filled again and again.
std::vector<FlightEvent> newest_of_many(int first, int last) {
  std::vector<FlightEvent> events;
  for (int number = first; number <= last; ++number)
    events.push_back(enqueued(static_cast<std::uint64_t>(number), "a", 500 - number));
  return events;
}

TEST(HangFindingsTest, ARecordThatDoesNotGoBackFarEnoughIsSaidToNameALaterOne) {
  std::vector<FlightEvent> many = newest_of_many(45, 300);
  EXPECT_THAT(
      findings({rank(0, many), rank(1, newest_of_many(1, 2))}),
      ElementsAre("rank 1 did not join: rank 0 enqueued all-gather 45 of 'a' (2.05 kB, group world) 455 s "
                  "ago, and before it others that no record has any more"));
  many.push_back(host_sync(9));
  EXPECT_THAT(
      findings({rank(0, many), rank(1, many)}),
      ElementsAre(
          "all ranks joined, and the GPUs have not finished: ranks 0-1 are in a host sync for 9 s; the "
          "first collective that may be open is all-gather 45 of 'a' (2.05 kB, group world), or an "
          "earlier one that no record has any more"));
  // One record is enough to know that the one before has ended.
  std::vector<FlightEvent> knows = newest_of_many(44, 300);
  knows.front().ended_ns = kNow;
  EXPECT_THAT(findings({rank(0, many), rank(1, knows)}),
              ElementsAre(::testing::EndsWith("(2.05 kB, group world)")));
}

TEST(HangFindingsTest, ARankWhoseRecordLostAGroupIsNotMissingThere) {
  FlightEvent replica = enqueued(3, "a", 50);
  replica.group.name = "replicas/0";
  std::vector<FlightEvent> many = newest_of_many(45, 300);
  EXPECT_THAT(findings({rank(0, {replica}), rank(1, many)}), IsEmpty());
  many.front().number = 1;  // Nothing was lost: the rank has not begun it.
  EXPECT_THAT(findings({rank(0, {replica}), rank(1, many)}), ElementsAre(HasSubstr("rank 1 did not join")));
}

}  // namespace
}  // namespace accel::launch
