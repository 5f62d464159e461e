#include "report/run_status.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "base/text.hpp"
#include "base/visible.hpp"
#include "report/svg_chart.hpp"

namespace accel {
namespace {

constexpr std::size_t kBarWidth = 24;
/// The time of a step is the mean over so many last records.
constexpr std::size_t kRecentRecords = 20;

std::optional<CurvePoint> newest(const RunHistory& run, const std::string& name) {
  const auto found = run.curves.find(name);
  return found == run.curves.end() ? std::nullopt : std::optional(found->second.back());
}

/// The steps that the configuration asks for; 0 if that is not known.
double max_steps(const RunHistory& run) {
  const auto found = run.settings.find("training.max_steps");
  return found == run.settings.end()
             ? 0
             : static_cast<double>(parse_int<std::int64_t>(found->second).value_or(0));
}

double recent_step_s(const RunHistory& run) {
  const auto found = run.curves.find("step_time_s");
  if (found == run.curves.end()) return 0;
  const std::vector<CurvePoint>& times = found->second;
  const std::size_t count = std::min(kRecentRecords, times.size());
  double sum = 0;
  for (std::size_t i = times.size() - count; i < times.size(); ++i) sum += times[i].value;
  return sum / static_cast<double>(count);
}

std::string progress_of(const RunHistory& run, double step, bool goes_on = true) {
  const double most = max_steps(run);
  if (most <= 0) return fmt::format("step {}", step);
  std::string text = fmt::format("step {} of {}  {:.0f}%", step, most, 100 * step / most);
  const double left = (most - step) * recent_step_s(run);
  if (goes_on && left > 0 && left < 1e12) text += fmt::format("  {} left", format_duration(left));
  return text;
}

std::string bar_of(double step, double most) {
  const double part = most > 0 ? std::clamp(step / most, 0.0, 1.0) : 0;
  const auto filled = static_cast<std::size_t>(part * kBarWidth);
  return "[" + std::string(filled, '#') + std::string(kBarWidth - filled, '.') + "] ";
}

/// The last numbers of a step.
std::string numbers_of(const RunHistory& run) {
  std::vector<std::string> texts;
  if (const auto loss = newest(run, "loss")) texts.push_back(fmt::format("loss {:.4f}", loss->value));
  if (const auto rate = newest(run, "lr")) texts.push_back(fmt::format("lr {:.2e}", rate->value));
  if (const auto norm = newest(run, "grad_norm"))
    texts.push_back(fmt::format("grad norm {:.3f}", norm->value));
  const auto tokens = newest(run, "tokens_per_s");
  const auto samples = newest(run, "samples_per_s");
  if (tokens && tokens->value > 0) {
    texts.push_back(text_of_value(tokens->value, ChartUnit::kNumber) + " tokens/s");
  } else if (samples) {
    texts.push_back(text_of_value(samples->value, ChartUnit::kNumber) + " samples/s");
  }
  if (const auto done = newest(run, "samples")) {
    texts.push_back(fmt::format("{} {}", text_of_value(done->value, ChartUnit::kNumber),
                                done->value == 1 ? "sample" : "samples"));
  }
  auto memory = newest(run, "max_memory_allocated_bytes");
  if (!memory) memory = newest(run, "max_rss_bytes");
  if (memory) texts.push_back(text_of_value(memory->value, ChartUnit::kBytes));
  return fmt::format("{}", fmt::join(texts, "  "));
}

std::string events_of(const RunHistory& run) {
  std::vector<std::string> texts;
  if (const auto loss = newest(run, "eval_loss"))
    texts.push_back(fmt::format("held-out loss {:.4f} at step {}", loss->value, loss->step));
  for (const std::string& set : held_out_sets(run)) {
    const auto loss = newest(run, fmt::format("eval_{}_loss", set));
    texts.push_back(fmt::format("{} {:.4f}", visible(set), loss->value));
  }
  if (const auto saved = newest(run, "save_time_s"))
    texts.push_back(fmt::format("checkpoint of step {}", saved->step));
  const auto early = newest(run, "stopped_early");
  const auto loss_now = newest(run, "loss");
  if (early && (!loss_now || early->step >= loss_now->step))
    texts.push_back(fmt::format("stopped early after step {}", early->step));
  if (run.attempts.size() > 1) texts.push_back(fmt::format("{} attempts", run.attempts.size()));
  return fmt::format("{}", fmt::join(texts, "  "));
}

/// The first `columns` characters.
std::string cut(const std::string& text, std::size_t columns) {
  std::size_t end = 0;
  for (; columns > 0 && end < text.size(); --columns)
    end += std::max<std::size_t>(1, utf8_character(std::string_view(text).substr(end)).bytes);
  return text.substr(0, end);
}

}  // namespace

std::string sparkline(const std::vector<CurvePoint>& points, std::size_t columns) {
  static constexpr std::array kBlocks = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  std::vector<double> values;
  for (const CurvePoint& point : points) {
    if (std::abs(point.value) < 1e100) values.push_back(point.value);
  }
  const std::size_t count = std::min(columns, values.size());
  std::vector<double> means;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t begin = values.size() * i / count;
    const std::size_t end = values.size() * (i + 1) / count;
    double sum = 0;
    for (std::size_t at = begin; at < end; ++at) sum += values[at];
    means.push_back(sum / static_cast<double>(end - begin));
  }
  if (means.empty()) return "";
  const auto [low, high] = std::minmax_element(means.begin(), means.end());
  const double range = *high - *low;
  std::string line;
  for (const double mean : means)
    line += kBlocks.at(range > 0 ? static_cast<std::size_t>((mean - *low) / range * 7.999) : 0);
  return line;
}

std::vector<std::string> status_lines(const RunHistory& run, std::size_t columns, double done_steps) {
  const auto loss = newest(run, "loss");
  if (!loss && done_steps <= 0) return {cut("no step is logged yet", columns)};
  const double step = std::max(done_steps, loss ? loss->step : 0);
  std::vector<std::string> lines = {bar_of(step, max_steps(run)) + progress_of(run, step), numbers_of(run)};
  if (loss)
    lines.push_back("loss " + sparkline(run.curves.at("loss"), columns - std::min<std::size_t>(columns, 5)));
  lines.push_back(events_of(run));
  std::erase(lines, "");
  for (std::string& line : lines) line = cut(line, columns);
  return lines;
}

std::string status_line(const RunHistory& run, bool goes_on) {
  const auto loss = newest(run, "loss");
  if (!loss) return "no step is logged yet";
  const std::string events = events_of(run);
  return fmt::format("{}  {}{}{}", progress_of(run, loss->step, goes_on), numbers_of(run),
                     events.empty() ? "" : "  ", events);
}

}  // namespace accel
