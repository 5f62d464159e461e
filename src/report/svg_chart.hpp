#pragma once

#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "report/run_history.hpp"

namespace accel {

/// A curve of a chart.
struct ChartLine {
  std::string name;  ///< What its points are called when the pointer is over them.
  int color = 0;     ///< The number of a class `c<color>` of the page's style sheet.
  bool dashed = false;
  std::vector<CurvePoint> points;  ///< In the order of their steps.
};

/// A vertical line at a step.
struct ChartMark {
  double step = 0;
  int color = 0;
  std::string text;
};

enum class ChartUnit { kNumber, kBytes, kSeconds };

struct Chart {
  std::string title;
  ChartUnit unit = ChartUnit::kNumber;
  bool from_zero = false;  ///< The axis of values begins with 0.
  /// The axis of steps holds these and the steps of the lines. Without them it holds the lines alone.
  double first_step = std::numeric_limits<double>::infinity();
  double last_step = -std::numeric_limits<double>::infinity();
  std::vector<ChartLine> lines;
  std::vector<ChartMark> marks;
};

/// Whether the chart has a point that can be drawn.
[[nodiscard]] bool has_points(const Chart& chart);

/// The chart as an `svg` element, without colors, which the style sheet of the page gives to the classes
/// `line`, `point`, `mark`, `grid`, `tick` and `c0`, `c1` and so on. Each point has a `title` with its step
/// and value, so that no script is needed to read it.
///
/// Values that span more than two decades, all of them positive, have a logarithmic axis. A value that is
/// NaN, infinite or beyond 1e100 interrupts the line. Of a long curve the points are drawn that its picture
/// needs: the first, the last, the least and the greatest of each of 160 equal parts.
[[nodiscard]] std::string svg_chart(const Chart& chart);

/// At most some ten round numbers from `low` to `high`, ascending: multiples of 1, 2 or 5 times a power of
/// ten.
[[nodiscard]] std::vector<double> ticks(double low, double high);

/// `text` for HTML and SVG, between tags or in an attribute: visible() with the characters of markup escaped.
[[nodiscard]] std::string html_text(std::string_view text);

/// "12.5", "1.2M", "3e-05"; "1.5 GB"; "250 ms".
[[nodiscard]] std::string text_of_value(double value, ChartUnit unit);

}  // namespace accel
