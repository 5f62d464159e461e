#include "report/run_page.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

RunHistory run_of(std::string name, std::map<std::string, std::string> settings = {}) {
  RunHistory run;
  run.name = std::move(name);
  run.settings = std::move(settings);
  run.curves["loss"] = {{1, 3.0}, {2, 2.0}};
  run.curves["tokens_per_s"] = {{1, 0}, {2, 0}};
  run.curves["samples_per_s"] = {{1, 10}, {2, 11}};
  run.attempts = {{0, 1, {}}};
  return run;
}

std::vector<std::string> titles(const std::vector<Chart>& charts) {
  std::vector<std::string> found;
  for (const Chart& chart : charts) found.push_back(chart.title);
  return found;
}

TEST(ChartsTest, AreOfWhatTheRunsHave) {
  RunHistory run = run_of("a");
  EXPECT_THAT(titles(charts_of({run})),
              ElementsAre("Loss, and held-out loss (dashed)", "Samples per second"));
  run.curves["tokens_per_s"] = {{1, 100}, {2, 110}};
  EXPECT_THAT(titles(charts_of({run})), ElementsAre("Loss, and held-out loss (dashed)", "Tokens per second"));
}

TEST(ChartsTest, RunsShareTheChartsAndTheSteps) {
  RunHistory longer = run_of("b");
  longer.curves["loss"].push_back({50, 1.0});
  longer.curves["eval_loss"] = {{50, 1.5}};
  longer.attempts.push_back({1, 50, {}});
  const std::vector<Chart> charts = charts_of({run_of("a"), longer});
  ASSERT_EQ(charts.size(), 2U);
  ASSERT_EQ(charts[0].lines.size(), 3U);
  EXPECT_EQ(charts[0].lines[0].color, 0);
  EXPECT_EQ(charts[0].lines[1].color, 1);
  EXPECT_TRUE(charts[0].lines[2].dashed);
  EXPECT_EQ(charts[0].lines[2].color, 1);
  for (const Chart& chart : charts) {
    EXPECT_EQ(chart.first_step, 1);
    EXPECT_EQ(chart.last_step, 50);
    ASSERT_EQ(chart.marks.size(), 1U);
    EXPECT_EQ(chart.marks[0].step, 50);
    EXPECT_EQ(chart.marks[0].color, 1);
  }
}

TEST(SettingsTest, ThoseThatDifferAreNotThePlacesOfARun) {
  const RunHistory a =
      run_of("a", {{"lr", "1"}, {"same", "2"}, {"only_a", "3"}, {"training.output_dir", "\"a\""}});
  const RunHistory b = run_of("b", {{"lr", "4"}, {"same", "2"}, {"x.wrap_origin", "5"}});
  EXPECT_THAT(differing_settings({a, b}), ElementsAre("lr", "only_a"));
  EXPECT_TRUE(differing_settings({a}).empty());
}

TEST(RunPageTest, LoadsNothingAndEscapesNames) {
  const std::string hostile = "<script>alert(1)</script>\"'&";
  RunHistory run = run_of(hostile, {{hostile, hostile}});
  run.attempts.push_back({1, 2, {{"run_time_s", 2}, {"data_s", 1}}});
  for (const std::string& page : {run_page({run}), run_page({run, run_of("b")})}) {
    EXPECT_THAT(page, Not(HasSubstr("<script")));
    EXPECT_THAT(page, Not(HasSubstr("http://")));
    EXPECT_THAT(page, Not(HasSubstr("https://")));
    EXPECT_THAT(page, HasSubstr("&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#39;&amp;"));
  }
}

TEST(RunPageTest, ARunWithoutARecordHasAPage) {
  RunHistory run;
  run.name = "empty";
  EXPECT_THAT(run_page({run}), HasSubstr("empty"));
  EXPECT_THAT(run_page({run}), Not(HasSubstr("<svg")));
}

}  // namespace
}  // namespace accel
