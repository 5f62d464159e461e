#include "plan/memory/prefetch_schedule.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iterator>
#include <string>
#include <utility>
#include <vector>

namespace accel {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

/// Writes into a list what the schedule starts.
class FakeUnit final : public PrefetchUnit {
 public:
  FakeUnit(std::string name, PrefetchSchedule& schedule, std::vector<std::string>& started)
      : name_(std::move(name)), schedule_(schedule), started_(started) {}

  void start_unshard() override {
    started_.push_back("gather " + name_);
    schedule_.on_unshard(*this);
  }
  void fetch_activations() override { started_.push_back("fetch " + name_); }
  [[nodiscard]] bool awaits_backward() const override { return awaits_backward_value; }

  bool awaits_backward_value = true;

 private:
  std::string name_;
  PrefetchSchedule& schedule_;
  std::vector<std::string>& started_;
};

class PrefetchScheduleTest : public testing::Test {
 protected:
  /// A forward through root, a, b with b1 and b2 inside it, and c.
  void record() {
    schedule_.begin_call(root_);
    call(a_);
    schedule_.begin_call(b_);
    call(b1_);
    call(b2_);
    schedule_.end_call(b_);
    call(c_);
    schedule_.end_call(root_);
    schedule_.finish_recording();
  }

  void call(FakeUnit& leaf) {
    schedule_.begin_call(leaf);
    schedule_.end_call(leaf);
  }

  explicit PrefetchScheduleTest(int depth = 1) : schedule_(depth) {}

  PrefetchSchedule schedule_;
  std::vector<std::string> started_;
  FakeUnit root_{"root", schedule_, started_};
  FakeUnit a_{"a", schedule_, started_};
  FakeUnit b_{"b", schedule_, started_};
  FakeUnit b1_{"b1", schedule_, started_};
  FakeUnit b2_{"b2", schedule_, started_};
  FakeUnit c_{"c", schedule_, started_};
};

TEST_F(PrefetchScheduleTest, GathersNothingAheadWhileItRecords) {
  call(a_);
  schedule_.begin_call(b_);
  schedule_.prefetch_forward(a_, nullptr);
  schedule_.prefetch_backward(b_, false);
  schedule_.gather_candidates();
  EXPECT_THAT(started_, IsEmpty());
}

TEST_F(PrefetchScheduleTest, ForwardGathersTheUnitThatBeginsNext) {
  record();
  schedule_.prefetch_forward(root_, nullptr);
  schedule_.prefetch_forward(b_, nullptr);
  schedule_.prefetch_forward(b2_, nullptr);
  EXPECT_THAT(started_, ElementsAre("gather a", "gather b1", "gather c"));
  started_.clear();
  schedule_.prefetch_forward(c_, nullptr);
  EXPECT_THAT(started_, IsEmpty());
}

TEST_F(PrefetchScheduleTest, RecomputationEndsWithTheUnitsInsideTheOneThatRecomputes) {
  record();
  schedule_.prefetch_forward(b1_, &b_);
  schedule_.prefetch_forward(b2_, &b_);
  schedule_.prefetch_forward(a_, &a_);
  EXPECT_THAT(started_, ElementsAre("gather b2"));
}

TEST_F(PrefetchScheduleTest, BackwardFetchesAndGathersTheUnitThatEndedBefore) {
  record();
  schedule_.prefetch_backward(root_, false);
  schedule_.on_reshard(c_);
  schedule_.prefetch_backward(c_, false);
  schedule_.on_reshard(b_);
  schedule_.prefetch_backward(b_, false);
  EXPECT_THAT(started_, ElementsAre("fetch c", "gather c", "fetch b", "gather b", "fetch b2", "gather b2"));
  started_.clear();
  schedule_.prefetch_backward(a_, false);
  EXPECT_THAT(started_, IsEmpty());
}

TEST_F(PrefetchScheduleTest, BackwardOfAUnitThatRecomputesGathersItsFirstInnerUnit) {
  record();
  schedule_.prefetch_backward(b_, true);
  EXPECT_THAT(started_, ElementsAre("fetch b1", "gather b1"));
  started_.clear();
  schedule_.prefetch_backward(c_, true);
  EXPECT_THAT(started_, ElementsAre("fetch b", "gather b"));
}

TEST_F(PrefetchScheduleTest, BackwardPassesOverUnitsThatAwaitNoBackward) {
  record();
  b_.awaits_backward_value = false;
  b2_.awaits_backward_value = false;
  schedule_.prefetch_backward(c_, false);
  EXPECT_THAT(started_, ElementsAre("fetch b1", "gather b1"));
}

TEST_F(PrefetchScheduleTest, AUnitThatTheFirstForwardDidNotCallHasNoNext) {
  FakeUnit late("late", schedule_, started_);
  record();
  call(late);
  schedule_.prefetch_forward(late, nullptr);
  schedule_.prefetch_backward(late, false);
  EXPECT_THAT(started_, IsEmpty());
}

TEST_F(PrefetchScheduleTest, TheCandidateWaitsUntilThereIsRoom) {
  record();
  FakeUnit* const unsharded[] = {&root_, &b_, &b1_};
  ASSERT_EQ(std::ssize(unsharded), schedule_.most());
  for (FakeUnit* unit : unsharded) EXPECT_TRUE(schedule_.on_unshard(*unit));
  schedule_.prefetch_forward(b1_, nullptr);
  EXPECT_THAT(started_, IsEmpty());
  EXPECT_EQ(schedule_.gathered_ahead(), 0);

  schedule_.on_reshard(b1_);
  schedule_.gather_candidates();
  EXPECT_THAT(started_, ElementsAre("gather b2"));
  EXPECT_EQ(schedule_.gathered_ahead(), 1);
  // It is no longer the candidate.
  schedule_.on_reshard(b2_);
  schedule_.gather_candidates();
  EXPECT_THAT(started_, ElementsAre("gather b2"));
}

TEST_F(PrefetchScheduleTest, ADroppedCandidateIsNotGathered) {
  record();
  for (FakeUnit* unit : {&root_, &b_, &b1_}) schedule_.on_unshard(*unit);
  schedule_.prefetch_forward(b1_, nullptr);
  schedule_.drop_candidates();
  schedule_.on_reshard(b1_);
  schedule_.gather_candidates();
  EXPECT_THAT(started_, IsEmpty());
}

TEST_F(PrefetchScheduleTest, ACandidateThatIsCalledFirstIsNotGatheredAgain) {
  record();
  for (FakeUnit* unit : {&root_, &b_, &b1_}) schedule_.on_unshard(*unit);
  schedule_.prefetch_forward(b1_, nullptr);
  schedule_.on_unshard(b2_);
  for (FakeUnit* unit : {&b1_, &b2_}) schedule_.on_reshard(*unit);
  schedule_.gather_candidates();
  EXPECT_THAT(started_, IsEmpty());
}

TEST_F(PrefetchScheduleTest, CountsEachUnshardedUnitOnce) {
  EXPECT_TRUE(schedule_.on_unshard(a_));
  EXPECT_FALSE(schedule_.on_unshard(a_));
  EXPECT_TRUE(schedule_.on_unshard(b_));
  EXPECT_EQ(schedule_.most_unsharded(), 2);
  schedule_.on_reshard(a_);
  schedule_.on_reshard(a_);
  EXPECT_TRUE(schedule_.on_unshard(c_));
  EXPECT_EQ(schedule_.most_unsharded(), 2);
  EXPECT_TRUE(schedule_.on_unshard(a_));
  EXPECT_EQ(schedule_.most_unsharded(), 3);
}

TEST_F(PrefetchScheduleTest, AGatherOfAnUnshardedCandidateIsNotCounted) {
  record();
  schedule_.on_unshard(a_);
  schedule_.prefetch_forward(root_, nullptr);
  EXPECT_EQ(schedule_.gathered_ahead(), 0);
  EXPECT_EQ(schedule_.most_unsharded(), 1);
}

/// Up to three units are gathered ahead.
class DeepPrefetchScheduleTest : public PrefetchScheduleTest {
 protected:
  DeepPrefetchScheduleTest() : PrefetchScheduleTest(3) {}
};

TEST_F(DeepPrefetchScheduleTest, ForwardGathersTheUnitsThatBeginNextUpToTheLast) {
  record();
  schedule_.prefetch_forward(root_, nullptr);
  EXPECT_THAT(started_, ElementsAre("gather a", "gather b", "gather b1"));
  started_.clear();
  schedule_.prefetch_forward(b2_, nullptr);
  EXPECT_THAT(started_, ElementsAre("gather c"));
  EXPECT_EQ(schedule_.gathered_ahead(), 4);
}

TEST_F(DeepPrefetchScheduleTest, RecomputationEndsWithTheUnitsInsideTheOneThatRecomputes) {
  record();
  schedule_.prefetch_forward(b1_, &b_);
  EXPECT_THAT(started_, ElementsAre("gather b2"));
}

TEST_F(DeepPrefetchScheduleTest, BackwardGathersTheUnitsThatEndedBeforeAndFetchesTheNearestActivations) {
  record();
  b2_.awaits_backward_value = false;
  schedule_.prefetch_backward(c_, false);
  EXPECT_THAT(started_, ElementsAre("fetch b", "gather b", "gather b1", "gather a"));
  started_.clear();
  schedule_.on_reshard(b1_);
  schedule_.prefetch_backward(b_, true);  // Its inner units run again before its backward.
  EXPECT_THAT(started_, ElementsAre("fetch b1", "gather b1", "gather b2"));
}

TEST_F(DeepPrefetchScheduleTest, TheNearestIsGatheredFirstWhenThereIsRoom) {
  record();
  for (FakeUnit* unit : {&root_, &a_, &c_}) EXPECT_TRUE(schedule_.on_unshard(*unit));
  schedule_.prefetch_forward(a_, nullptr);  // Five may be unsharded.
  EXPECT_THAT(started_, ElementsAre("gather b", "gather b1"));
  schedule_.on_reshard(a_);
  schedule_.gather_candidates();
  EXPECT_THAT(started_, ElementsAre("gather b", "gather b1", "gather b2"));
  EXPECT_EQ(schedule_.most_unsharded(), schedule_.most());
  schedule_.on_reshard(b_);
  schedule_.gather_candidates();
  EXPECT_EQ(started_.size(), 3U);
}

}  // namespace
}  // namespace accel
