#include "report/svg_chart.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "base/text.hpp"
#include "base/visible.hpp"

namespace accel {
namespace {

constexpr double kWidth = 640;
constexpr double kHeight = 250;
constexpr double kLeft = 66;
constexpr double kRight = kWidth - 14;
constexpr double kTop = 12;
constexpr double kBottom = kHeight - 30;
constexpr double kMostDrawn = 1e100;
constexpr double kLeastDrawn = 1e-100;  ///< What is less is drawn as 0.
constexpr std::size_t kParts = 160;
constexpr std::size_t kFewPoints = 40;  ///< Of so few each is marked.

bool is_drawn(const CurvePoint& point) {
  return std::abs(point.value) <= kMostDrawn && std::abs(point.step) <= kMostDrawn;
}

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void take(double value) {
    if (std::abs(value) < kLeastDrawn) value = 0;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  /// Makes room around a single value.
  void widen() {
    if (low < high) return;
    const double room = low == 0 ? 1 : std::abs(low) / 10;
    low -= room;
    high += room;
  }
};

/// Maps values to a coordinate of the picture.
struct Axis {
  Range range;
  double from = 0;
  double to = 0;
  bool is_log = false;

  [[nodiscard]] double scaled(double value) const { return is_log ? std::log10(value) : value; }
  [[nodiscard]] double at(double value) const {
    const double low = scaled(range.low);
    return from + (scaled(value) - low) / (scaled(range.high) - low) * (to - from);
  }
};

std::vector<double> log_ticks(const Range& range) {
  std::vector<double> all;
  const int first = static_cast<int>(std::floor(std::log10(range.low)));
  const int last = static_cast<int>(std::ceil(std::log10(range.high)));
  const int stride = std::max(1, (last - first) / 6);
  for (int power = first; power <= last; power += stride) {
    for (const double digit : {1, 2, 5}) {
      if (digit != 1 && last - first > 3) break;
      const double value = digit * std::pow(10, power);
      if (value >= range.low && value <= range.high) all.push_back(value);
    }
  }
  return all;
}

Axis axis_of_steps(const Chart& chart) {
  Axis axis{.range = {chart.first_step, chart.last_step}, .from = kLeft, .to = kRight};
  for (const ChartLine& line : chart.lines) {
    for (const CurvePoint& point : line.points) {
      if (is_drawn(point)) axis.range.take(point.step);
    }
  }
  axis.range.widen();
  return axis;
}

Axis axis_of_values(const Chart& chart) {
  Axis axis{.from = kBottom, .to = kTop};
  for (const ChartLine& line : chart.lines) {
    for (const CurvePoint& point : line.points) {
      if (is_drawn(point)) axis.range.take(point.value);
    }
  }
  Range& range = axis.range;
  axis.is_log = !chart.from_zero && range.low > 0 && range.high / range.low > 100;
  if (axis.is_log) return axis;
  if (chart.from_zero && range.low >= 0) {
    range.low = 0;
    range.high = range.high > 0 ? range.high * 1.05 : 1;
    return axis;
  }
  range.widen();
  const double room = (range.high - range.low) * 0.04;
  range.low -= room;
  range.high += room;
  return axis;
}

/// The points that the picture of a curve needs.
std::vector<CurvePoint> thinned(const std::vector<CurvePoint>& points) {
  if (points.size() <= 4 * kParts) return points;
  std::vector<CurvePoint> kept;
  for (std::size_t part = 0; part < kParts; ++part) {
    const std::size_t begin = points.size() * part / kParts;
    const std::size_t end = points.size() * (part + 1) / kParts;
    std::size_t least = begin;
    std::size_t most = begin;
    for (std::size_t i = begin; i < end; ++i) {
      // A NaN is less than nothing and is replaced by any number.
      if (!is_drawn(points[least]) || points[i].value < points[least].value) least = i;
      if (!is_drawn(points[most]) || points[i].value > points[most].value) most = i;
    }
    std::vector<std::size_t> of_part = {begin, least, most, end - 1};
    std::sort(of_part.begin(), of_part.end());
    of_part.erase(std::unique(of_part.begin(), of_part.end()), of_part.end());
    for (const std::size_t i : of_part) kept.push_back(points[i]);
  }
  return kept;
}

std::string svg_axes(const Chart& chart, const Axis& steps, const Axis& values) {
  std::string svg;
  for (const double value :
       values.is_log ? log_ticks(values.range) : ticks(values.range.low, values.range.high)) {
    const double y = values.at(value);
    svg += fmt::format(R"(<line class="grid" x1="{:.0f}" y1="{:.2f}" x2="{:.0f}" y2="{:.2f}"/>)", kLeft, y,
                       kRight, y);
    svg += fmt::format(R"(<text class="tick y" x="{:.0f}" y="{:.2f}" data-value="{}">{}</text>)", kLeft - 8,
                       y + 4, value, html_text(text_of_value(value, chart.unit)));
  }
  for (const double step : ticks(steps.range.low, steps.range.high)) {
    if (step != std::floor(step)) continue;
    svg += fmt::format(R"(<text class="tick x" x="{:.2f}" y="{:.0f}" data-value="{}">{}</text>)",
                       steps.at(step), kBottom + 18, step, text_of_value(step, ChartUnit::kNumber));
  }
  svg += fmt::format(R"(<line class="axis" x1="{:.0f}" y1="{:.0f}" x2="{:.0f}" y2="{:.0f}"/>)", kLeft,
                     kBottom, kRight, kBottom);
  return svg;
}

std::string svg_line(const Chart& chart, const ChartLine& line, const Axis& steps, const Axis& values) {
  std::string path;
  std::string circles;
  bool pen_is_down = false;
  for (const CurvePoint& point : thinned(line.points)) {
    if (!is_drawn(point)) {
      pen_is_down = false;
      continue;
    }
    const double x = steps.at(point.step);
    const double y = values.at(point.value);
    path += fmt::format("{}{:.2f} {:.2f}", pen_is_down ? "L" : "M", x, y);
    pen_is_down = true;
    const std::string text = text_of_value(point.value, chart.unit);
    circles += fmt::format(
        R"(<circle cx="{:.2f}" cy="{:.2f}" r="3" data-step="{}" data-value="{}"><title>{}, step {}: {}</title></circle>)",
        x, y, point.step, point.value, html_text(line.name), point.step, html_text(text));
  }
  const char* const dashed = line.dashed ? " dashed" : line.points.size() <= kFewPoints ? " few" : "";
  return fmt::format(R"(<path class="line c{}{}" d="{}"/><g class="points c{}{}" data-line="{}">{}</g>)",
                     line.color, dashed, path, line.color, dashed, html_text(line.name), circles);
}

}  // namespace

bool has_points(const Chart& chart) {
  return std::any_of(chart.lines.begin(), chart.lines.end(), [](const ChartLine& line) {
    return std::any_of(line.points.begin(), line.points.end(), is_drawn);
  });
}

std::vector<double> ticks(double low, double high) {
  if (!(low < high)) return {};
  const double rough = (high - low) / 5;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  const double factor = rough / power;
  const double stride = power * (factor <= 1 ? 1 : factor <= 2 ? 2 : factor <= 5 ? 5 : 10);
  std::vector<double> all;
  // Multiples of a whole number, so that rounding errors do not add up; at most 11 of them.
  const double first = std::ceil(low / stride);
  for (int i = 0; i <= 10; ++i) {
    const double value = (first + i) * stride;
    if (value > high || (!all.empty() && value == all.back())) break;
    all.push_back(value);
  }
  return all;
}

std::string text_of_value(double value, ChartUnit unit) {
  if (unit == ChartUnit::kSeconds && value > 0 && value < 1e12) return format_duration(value);
  if (unit == ChartUnit::kBytes && value >= 0 && value < 1e18)
    return format_bytes(static_cast<std::uint64_t>(value));
  const double size = std::abs(value);
  if (size >= 1e9 || (size > 0 && size < 1e-3)) return fmt::format("{:.4g}", value);
  if (size >= 1e6) return fmt::format("{:.4g}M", value / 1e6);
  if (size >= 1e4) return fmt::format("{:.4g}k", value / 1e3);
  return fmt::format("{:.6g}", value);
}

std::string html_text(std::string_view text) {
  std::string escaped;
  for (const char c : visible(text)) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

std::string svg_chart(const Chart& chart) {
  const Axis steps = axis_of_steps(chart);
  const Axis values = axis_of_values(chart);
  std::string svg = fmt::format(R"(<svg viewBox="0 0 {:.0f} {:.0f}" role="img" aria-label="{}">)", kWidth,
                                kHeight, html_text(chart.title));
  svg += svg_axes(chart, steps, values);
  for (const ChartMark& mark : chart.marks) {
    if (!(mark.step >= steps.range.low && mark.step <= steps.range.high)) continue;
    const double x = steps.at(mark.step);
    svg += fmt::format(
        R"(<line class="mark c{}" x1="{:.2f}" y1="{:.0f}" x2="{:.2f}" y2="{:.0f}" data-step="{}"><title>{}</title></line>)",
        mark.color, x, kTop, x, kBottom, mark.step, html_text(mark.text));
  }
  for (const ChartLine& line : chart.lines) svg += svg_line(chart, line, steps, values);
  return svg + "</svg>\n";
}

}  // namespace accel
