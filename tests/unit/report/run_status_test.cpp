#include "report/run_status.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace accel {
namespace {

using ::testing::ElementsAre;

RunHistory run_at_step_50() {
  RunHistory run;
  run.settings["training.max_steps"] = "200";
  run.curves["loss"] = {{10, 4.0}, {50, 2.5}};
  run.curves["lr"] = {{50, 0.001}};
  run.curves["grad_norm"] = {{50, 1.25}};
  run.curves["tokens_per_s"] = {{50, 81'000}};
  run.curves["samples"] = {{10, 6400}, {50, 32'000}};
  run.curves["max_rss_bytes"] = {{50, 2e9}};
  run.curves["step_time_s"] = {{10, 0.5}, {50, 1.5}};
  run.attempts = {{0, 1, {}}};
  return run;
}

TEST(RunStatusTest, SaysHowFarTheRunIs) {
  RunHistory run = run_at_step_50();
  EXPECT_THAT(status_lines(run, 100),
              ElementsAre("[######..................] step 50 of 200  25%  2m 30s left",
                          "loss 2.5000  lr 1.00e-03  grad norm 1.250  81k tokens/s  32k samples  2.00 GB",
                          "loss █▁"));
  EXPECT_EQ(status_line(run),
            "step 50 of 200  25%  2m 30s left  loss 2.5000  lr 1.00e-03  grad norm 1.250  81k tokens/s  32k "
            "samples  2.00 GB");
  EXPECT_EQ(status_lines(run, 100, 70).front(),
            "[########................] step 70 of 200  35%  2m 10s left");
  EXPECT_EQ(status_lines(run, 100, 49), status_lines(run, 100));
  run.curves["eval_loss"] = {{40, 2.75}};
  run.curves["save_time_s"] = {{40, 1}};
  run.attempts.push_back({1, 45, {}});
  EXPECT_EQ(status_lines(run, 100).back(),
            "held-out loss 2.7500 at step 40  checkpoint of step 40  2 attempts");
  run.curves["eval_wiki_loss"] = {{20, 3.5}, {40, 3.25}};
  run.curves["eval_wiki_accuracy"] = {{40, 0.5}};
  EXPECT_EQ(status_lines(run, 100).back(),
            "held-out loss 2.7500 at step 40  wiki 3.2500  checkpoint of step 40  2 attempts");
}

TEST(RunStatusTest, SaysThatARunHasStoppedEarly) {
  RunHistory run = run_at_step_50();
  run.curves["stopped_early"] = {{55, 3}};
  EXPECT_EQ(status_lines(run, 100).back(), "stopped early after step 55");
  // It has gone on since, with more patience.
  run.curves["loss"].push_back({60, 2.25});
  EXPECT_EQ(status_lines(run, 100).size(), 3);
}

TEST(RunStatusTest, TheStepIsKnownBeforeItsNumbers) {
  RunHistory run;
  run.settings["training.max_steps"] = "200";
  EXPECT_THAT(status_lines(run, 100), ElementsAre("no step is logged yet"));
  EXPECT_THAT(status_lines(run, 100, 2), ElementsAre("[........................] step 2 of 200  1%"));
}

TEST(RunStatusTest, NoLineIsWiderThanTheTerminal) {
  RunHistory run = run_at_step_50();
  for (int step = 51; step < 300; ++step) run.curves["loss"].push_back({double(step), 1.0 / step});
  for (const std::size_t columns : {0U, 1U, 5U, 6U, 30U, 79U}) {
    for (const std::string& line : status_lines(run, columns)) {
      const auto characters =
          std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xc0) != 0x80; });
      EXPECT_LE(static_cast<std::size_t>(characters), columns) << line;
    }
  }
}

TEST(RunStatusTest, ARunWithoutAStepOrALimit) {
  EXPECT_THAT(status_lines(RunHistory(), 80), ElementsAre("no step is logged yet"));
  EXPECT_EQ(status_line(RunHistory()), "no step is logged yet");
  RunHistory run;
  run.curves["loss"] = {{3, 1.0}};
  EXPECT_EQ(status_line(run), "step 3  loss 1.0000");
  run.settings["training.max_steps"] = "\"many\"";
  EXPECT_EQ(status_line(run), "step 3  loss 1.0000");
}

TEST(SparklineTest, EachBlockIsAMean) {
  EXPECT_EQ(sparkline({{1, 0}, {2, 7}, {3, 3.5}}, 10), "▁█▄");
  EXPECT_EQ(sparkline({{1, 0}, {2, 2}, {3, 10}, {4, 20}}, 2), "▁█");
  EXPECT_EQ(sparkline({{1, 5}, {2, 5}}, 10), "▁▁");
  EXPECT_EQ(sparkline({}, 10), "");
  EXPECT_EQ(sparkline({{1, 5}}, 0), "");
  EXPECT_EQ(sparkline({{1, 1}, {2, std::numeric_limits<double>::quiet_NaN()}, {3, 2}}, 10), "▁█");
}

}  // namespace
}  // namespace accel
