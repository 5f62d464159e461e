#include "train/fsdp/backward_tracker.hpp"

#include <gtest/gtest.h>

namespace accel::train {
namespace {

TEST(BackwardTrackerTest, IsDoneWhenAllParametersAndInputsHaveTheirGradients) {
  BackwardTracker tracker(2);
  tracker.on_call(false);
  tracker.on_hooked_input();
  tracker.on_hooked_output();
  EXPECT_FALSE(tracker.is_done());
  EXPECT_TRUE(tracker.awaits_backward());

  tracker.on_output_gradient();
  EXPECT_FALSE(tracker.on_parameter_gradient());
  tracker.on_input_gradient();
  EXPECT_FALSE(tracker.is_done());
  EXPECT_TRUE(tracker.on_parameter_gradient());
  EXPECT_TRUE(tracker.is_done());
  EXPECT_FALSE(tracker.awaits_backward());
}

TEST(BackwardTrackerTest, AllCallsOfAMicroBatchExpectTheGradientsOnce) {
  BackwardTracker tracker(1);
  tracker.on_call(false);
  tracker.on_call(false);
  EXPECT_TRUE(tracker.on_parameter_gradient());
}

TEST(BackwardTrackerTest, ACallWithABackwardOfItsOwnExpectsThemAgain) {
  BackwardTracker tracker(1);
  tracker.on_call(true);
  tracker.on_call(true);
  EXPECT_FALSE(tracker.on_parameter_gradient());
  EXPECT_TRUE(tracker.on_parameter_gradient());
}

TEST(BackwardTrackerTest, AwaitsBackwardUntilTheGradientsOfAllOutputsHaveCome) {
  BackwardTracker tracker(0);
  tracker.on_call(false);
  tracker.on_hooked_output();
  tracker.on_hooked_output();
  // Nothing is missing, but backward has not begun.
  EXPECT_TRUE(tracker.is_done());
  EXPECT_TRUE(tracker.awaits_backward());
  tracker.on_output_gradient();
  EXPECT_FALSE(tracker.awaits_backward());
  // An input of another call is missing: backward comes back.
  tracker.on_hooked_input();
  EXPECT_TRUE(tracker.awaits_backward());
  tracker.on_output_gradient();
  EXPECT_FALSE(tracker.awaits_backward());
}

TEST(BackwardTrackerTest, AUnitWithoutHookedOutputsAwaitsNoBackward) {
  BackwardTracker tracker(1);
  EXPECT_FALSE(tracker.awaits_backward());
  tracker.on_call(false);
  EXPECT_FALSE(tracker.awaits_backward());
}

TEST(BackwardTrackerTest, AfterBackwardTheNextCallExpectsItsGradients) {
  BackwardTracker tracker(1);
  tracker.on_call(false);
  tracker.on_hooked_output();
  EXPECT_TRUE(tracker.on_parameter_gradient());
  tracker.finish();
  EXPECT_FALSE(tracker.awaits_backward());
  tracker.on_call(false);
  EXPECT_FALSE(tracker.is_done());
}

TEST(BackwardTrackerTest, ResetForgetsWhatAnEarlierForwardLeft) {
  BackwardTracker tracker(1);
  tracker.on_call(false);
  tracker.on_hooked_input();
  tracker.on_hooked_output();
  tracker.reset();
  EXPECT_TRUE(tracker.is_done());
  EXPECT_FALSE(tracker.awaits_backward());
  tracker.on_call(false);
  EXPECT_TRUE(tracker.on_parameter_gradient());
}

}  // namespace
}  // namespace accel::train
