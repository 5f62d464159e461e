#include "plan/schedule/early_stopping.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace accel {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

using Counters = std::vector<std::int64_t>;

/// The counter after each value, up to the one that ends the run.
Counters counters(const std::vector<double>& values, const config::EarlyStoppingConfig& config,
                  const char* metric = "loss") {
  EarlyStopping rule(config, metric);
  Counters found;
  for (const double value : values) {
    EXPECT_FALSE(rule.is_reached());
    rule.update(value);
    found.push_back(rule.state()->patience_counter);
    if (rule.is_reached()) break;
    // A checkpoint of a run that goes on holds all of it.
    const EarlyStopping::State state = *rule.state();
    rule = EarlyStopping(config, metric);
    rule.restore(state);
  }
  return found;
}

// The numbers are those of EarlyStoppingCallback and Trainer._determine_best_metric in transformers 5.23.
TEST(EarlyStoppingTest, CountsAsTransformersDoes) {
  EXPECT_EQ(counters({3, 2, 2, 1.75, 1.5, 1.25, 1.5, 1.25, 1.25}, {9, 0}),
            (Counters{0, 0, 1, 0, 0, 0, 1, 2, 3}));
  EXPECT_EQ(counters({3, 2.9, 2.8, 2.7, 2.0, 1.9, 1.5}, {9, 0.25}), (Counters{0, 1, 2, 3, 0, 1, 0}));
  EXPECT_EQ(counters({kNan, kNan, 3, kNan, 2, 2, kNan}, {9, 0}), (Counters{0, 1, 0, 1, 0, 1, 2}));
  EXPECT_EQ(counters({.5, .6, .6, .55, .7, kNan}, {9, 0}, "accuracy"), (Counters{0, 0, 1, 2, 0, 1}));
  EXPECT_EQ(counters({3, 3.5, 3, 2}, {2, 0}), (Counters{0, 1, 2}));
  EXPECT_EQ(counters({-1, -1.5, -1.6}, {9, 0.25}), (Counters{0, 0, 1}));
  EXPECT_EQ(counters({kInfinity, kInfinity, 2}, {9, 0}), (Counters{0, 1, 0}));
}

TEST(EarlyStoppingTest, SaysWhy) {
  EarlyStopping rule({1, 0.5}, "wiki_loss");
  for (const double value : {3.0, 2.25, 2.0}) rule.update(value);
  ASSERT_TRUE(rule.is_reached());
  EXPECT_EQ(rule.why(), "eval_wiki_loss was not better than 2 by more than 0.5 in the last 1 evaluation");
  EarlyStopping nan({2, 0}, "loss");
  for (int i = 0; i < 3; ++i) nan.update(kNan);
  ASSERT_TRUE(nan.is_reached());
  EXPECT_EQ(nan.why(), "eval_loss was not better than NaN in the last 2 evaluations");
}

}  // namespace
}  // namespace accel
