#include "report/svg_chart.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <regex>

namespace accel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

Chart chart_of(std::vector<CurvePoint> points) {
  Chart chart{.title = "Loss"};
  chart.lines.push_back({"run", 3, false, std::move(points)});
  return chart;
}

std::vector<double> numbers(const std::string& svg, const std::string& pattern) {
  std::vector<double> found;
  const std::regex regex(pattern);
  for (std::sregex_iterator at(svg.begin(), svg.end(), regex), end; at != end; ++at)
    found.push_back(std::stod((*at)[1]));
  return found;
}

std::vector<double> drawn(const std::string& svg) {
  return numbers(svg, "<circle[^>]* data-value=\"([^\"]*)\"");
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(TicksTest, AreRoundNumbersInTheRange) {
  EXPECT_THAT(ticks(0, 10), ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(ticks(1, 1500), ElementsAre(500, 1000, 1500));
  EXPECT_THAT(ticks(-1, 1), ElementsAre(-1, -0.5, 0, 0.5, 1));
  EXPECT_TRUE(ticks(3, 3).empty());
  EXPECT_TRUE(ticks(1, -1).empty());
  for (const double size : {1e-90, 1e-3, 7.0, 1e30, 1e99}) {
    const std::vector<double> found = ticks(size, 3.3 * size);
    EXPECT_GE(found.size(), 3U) << size;
    EXPECT_LE(found.size(), 11U) << size;
    EXPECT_TRUE(std::is_sorted(found.begin(), found.end()));
  }
  EXPECT_LE(ticks(1e16, 1e16 + 2).size(), 11U);  // Neighbours among the doubles.
}

TEST(SvgChartTest, AGreaterValueIsHigherAndALaterStepIsToTheRight) {
  const std::string svg = svg_chart(chart_of({{1, 2.0}, {2, 4.0}, {3, 3.0}}));
  const auto x = numbers(svg, "cx=\"([^\"]*)\"");
  const auto y = numbers(svg, "cy=\"([^\"]*)\"");
  EXPECT_THAT(drawn(svg), ElementsAre(2, 4, 3));
  EXPECT_LT(x[0], x[1]);
  EXPECT_LT(x[1], x[2]);
  EXPECT_NEAR(y[2], (y[0] + y[1]) / 2, 0.02);
  EXPECT_LT(y[1], y[0]);
}

TEST(SvgChartTest, WhatIsNotANumberInterruptsTheLine) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double value : {nan, 1e300, -std::numeric_limits<double>::infinity()}) {
    const std::string svg = svg_chart(chart_of({{1, 1.0}, {2, 2.0}, {3, value}, {4, 1.5}, {5, 1.0}}));
    EXPECT_THAT(drawn(svg), ElementsAre(1, 2, 1.5, 1));
    const std::string path = svg.substr(svg.find(" d=\""), 200);
    EXPECT_EQ(count(path.substr(0, path.find("/>")), "M"), 2U);
    EXPECT_THAT(svg, Not(HasSubstr("nan")));
    EXPECT_THAT(svg, Not(HasSubstr("inf")));
  }
  EXPECT_FALSE(has_points(chart_of({{1, nan}})));
  EXPECT_FALSE(has_points(Chart{}));
  EXPECT_TRUE(has_points(chart_of({{1, 0.0}})));
}

TEST(SvgChartTest, ASinglePointAndEqualPointsAreDrawn) {
  for (const double value : {0.0, 5.0, -3.0, 1e99}) {
    EXPECT_THAT(drawn(svg_chart(chart_of({{7, value}}))), ElementsAre(value));
    const std::string svg = svg_chart(chart_of({{7, value}, {8, value}}));
    EXPECT_THAT(svg, Not(HasSubstr("nan")));
    EXPECT_THAT(drawn(svg), ElementsAre(value, value));
  }
}

TEST(SvgChartTest, ALongCurveKeepsItsPeaksAndItsEnds) {
  std::vector<CurvePoint> points;
  for (int i = 0; i < 100'000; ++i) points.push_back({double(i), std::sin(i * 0.01)});
  points[44'321].value = 9;
  points[55'555].value = -9;
  points[66'000].value = std::numeric_limits<double>::quiet_NaN();
  const auto values = drawn(svg_chart(chart_of(points)));
  EXPECT_LE(values.size(), 640U);
  EXPECT_EQ(values.front(), points.front().value);
  EXPECT_EQ(values.back(), points.back().value);
  EXPECT_EQ(*std::max_element(values.begin(), values.end()), 9);
  EXPECT_EQ(*std::min_element(values.begin(), values.end()), -9);
}

TEST(SvgChartTest, ManyDecadesHaveALogarithmicAxis) {
  const std::string svg = svg_chart(chart_of({{1, 0.01}, {2, 1.0}, {3, 100.0}}));
  const auto y = numbers(svg, "cy=\"([^\"]*)\"");
  EXPECT_NEAR(y[0] - y[1], y[1] - y[2], 0.02);
  EXPECT_THAT(numbers(svg, "tick y\"[^>]* data-value=\"([^\"]*)\""), ElementsAre(0.01, 0.1, 1, 10, 100));
  // Not with a value that has no logarithm.
  const auto linear = numbers(svg_chart(chart_of({{1, 0.0}, {2, 1.0}, {3, 100.0}})), "cy=\"([^\"]*)\"");
  EXPECT_LT(linear[0] - linear[1], (linear[1] - linear[2]) / 50);
}

TEST(SvgChartTest, MarksOutsideOfTheStepsAreLeftOut) {
  Chart chart = chart_of({{10, 1.0}, {20, 2.0}});
  for (const double step : {5.0, 15.0, 25.0}) chart.marks.push_back({step, 0, "a restart"});
  EXPECT_THAT(numbers(svg_chart(chart), "class=\"mark[^>]* data-step=\"([^\"]*)\""), ElementsAre(15));
  chart.first_step = 0;
  EXPECT_THAT(numbers(svg_chart(chart), "class=\"mark[^>]* data-step=\"([^\"]*)\""), ElementsAre(5, 15));
}

TEST(HtmlTextTest, MarkupAndControlCharactersAreEscaped) {
  EXPECT_EQ(html_text("<b a=\"1\" c='2'>&"), "&lt;b a=&quot;1&quot; c=&#39;2&#39;&gt;&amp;");
  EXPECT_EQ(html_text("a\nb\x1b[31m\xff"), "a\\nb\\x1b[31m\\xff");
  EXPECT_EQ(html_text("größer"), "größer");
  Chart chart = chart_of({{1, 1.0}, {2, 2.0}});
  chart.title = chart.lines.front().name = "</title><script>";
  chart.marks.push_back({1, 0, "</title><script>"});
  EXPECT_THAT(svg_chart(chart), Not(HasSubstr("<script>")));
}

TEST(ValueTextTest, IsShort) {
  EXPECT_EQ(text_of_value(81'234.5, ChartUnit::kNumber), "81.23k");
  EXPECT_EQ(text_of_value(1'500'000, ChartUnit::kNumber), "1.5M");
  EXPECT_EQ(text_of_value(0.00003, ChartUnit::kNumber), "3e-05");
  EXPECT_EQ(text_of_value(0, ChartUnit::kSeconds), "0");
  EXPECT_EQ(text_of_value(0.25, ChartUnit::kSeconds), "250 ms");
  EXPECT_EQ(text_of_value(2'000'000'000, ChartUnit::kBytes), "2.00 GB");
}

}  // namespace
}  // namespace accel
