#include "report/run_page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "base/text.hpp"
#include "report/metric_sink.hpp"
#include "report/page_style.hpp"

namespace accel {
namespace {

/// A quantity of a run that is a curve.
struct Quantity {
  const char* name;   ///< In metrics.jsonl.
  const char* title;  ///< Of its chart.
  ChartUnit unit = ChartUnit::kNumber;
  bool from_zero = false;
};

constexpr std::array kQuantities = {
    Quantity{"lr", "Learning rate", ChartUnit::kNumber, true},
    Quantity{"grad_norm", "Norm of the gradient"},
    Quantity{"tokens_per_s", "Tokens per second", ChartUnit::kNumber, true},
    Quantity{"samples_per_s", "Samples per second", ChartUnit::kNumber, true},
    Quantity{"max_rss_bytes", "Peak memory of the process of rank 0", ChartUnit::kBytes, true},
    Quantity{"max_memory_allocated_bytes", "Peak memory on the GPU of rank 0", ChartUnit::kBytes, true},
    Quantity{"stall_s", "Training waited for a checkpoint", ChartUnit::kSeconds, true},
    Quantity{"save_time_s", "Time until a checkpoint was complete", ChartUnit::kSeconds, true},
    Quantity{"scale", "Scale of the loss"},
    Quantity{"skipped", "Skipped steps", ChartUnit::kNumber, true},
};

const std::vector<CurvePoint>& curve(const RunHistory& run, const std::string& name) {
  static const std::vector<CurvePoint> kNone;
  const auto found = run.curves.find(name);
  return found == run.curves.end() ? kNone : found->second;
}

int color_of(std::size_t run) { return static_cast<int>(run % kPageColors); }

/// Whether a run measures its data in tokens: it has then no need of samples per second.
bool counts_tokens(const RunHistory& run) {
  const auto& rates = curve(run, "tokens_per_s");
  return std::any_of(rates.begin(), rates.end(), [](const CurvePoint& point) { return point.value > 0; });
}

bool is_shown(const RunHistory& run, std::string_view quantity) {
  if (quantity == "tokens_per_s") return counts_tokens(run);
  if (quantity == "samples_per_s") return !counts_tokens(run);
  return true;
}

void add_restarts(Chart& chart, const RunHistory& run, int color) {
  for (std::size_t i = 1; i < run.attempts.size(); ++i) {
    chart.marks.push_back({run.attempts[i].first_step, color,
                           fmt::format("{}: attempt {} begins with step {}", run.name, run.attempts[i].number,
                                       run.attempts[i].first_step)});
  }
}

/// Gives all charts the same axis of steps.
void share_steps(std::vector<Chart>& charts) {
  double first = std::numeric_limits<double>::infinity();
  double last = -first;
  for (const Chart& chart : charts) {
    for (const ChartLine& line : chart.lines) {
      for (const CurvePoint& point : line.points) {
        first = std::min(first, point.step);
        last = std::max(last, point.step);
      }
    }
  }
  for (Chart& chart : charts) {
    chart.first_step = first;
    chart.last_step = last;
  }
}

std::optional<double> last_of(const std::vector<CurvePoint>& points) {
  return points.empty() ? std::nullopt : std::optional(points.back().value);
}

std::optional<double> median_of(const std::vector<CurvePoint>& points) {
  std::vector<double> values;
  for (const CurvePoint& point : points) {
    if (std::isfinite(point.value)) values.push_back(point.value);
  }
  if (values.empty()) return std::nullopt;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::optional<CurvePoint> least_of(const std::vector<CurvePoint>& points) {
  std::optional<CurvePoint> least;
  for (const CurvePoint& point : points) {
    if (std::isfinite(point.value) && (!least || point.value < least->value)) least = point;
  }
  return least;
}

double sum_of(const std::vector<CurvePoint>& points) {
  double sum = 0;
  for (const CurvePoint& point : points) sum += std::isfinite(point.value) ? point.value : 0;
  return sum;
}

/// `seconds`, at least `least` and at most what format_duration() takes. NaN, which is null in the file, is
/// `least`.
double seconds_within(double seconds, double least) {
  return seconds > least ? std::min(seconds, 1e12) : least;
}

std::string cell(std::string_view text) { return fmt::format("<td>{}</td>", html_text(text)); }
std::string heading(std::string_view text) { return fmt::format("<th>{}</th>", html_text(text)); }

std::string swatch(int color, std::string_view name) {
  return fmt::format(R"(<span class="swatch c{}"></span>{})", color, html_text(name));
}

std::string rate_of(const RunHistory& run) {
  const bool tokens = counts_tokens(run);
  const auto rate = median_of(curve(run, tokens ? "tokens_per_s" : "samples_per_s"));
  if (!rate) return "";
  return fmt::format("{} {}/s", text_of_value(*rate, ChartUnit::kNumber), tokens ? "tokens" : "samples");
}

std::string steps_of(const RunHistory& run) {
  const auto& losses = curve(run, "loss");
  if (losses.empty()) return "none";
  const auto most = run.settings.find("training.max_steps");
  return most == run.settings.end() ? fmt::format("{}", losses.back().step)
                                    : fmt::format("{} of {}", losses.back().step, most->second);
}

std::string table_of_results(const std::vector<RunHistory>& runs) {
  std::string rows;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const RunHistory& run = runs[i];
    const auto samples = last_of(curve(run, "samples"));
    const auto loss = last_of(curve(run, "loss"));
    const auto best = least_of(curve(run, "eval_loss"));
    const bool has_gpu = !curve(run, "max_memory_allocated_bytes").empty();
    const auto memory = last_of(curve(run, has_gpu ? "max_memory_allocated_bytes" : "max_rss_bytes"));
    const auto& saves = curve(run, "stall_s");
    rows += fmt::format("<tr><td>{}</td>", swatch(color_of(i), run.name));
    rows += cell(steps_of(run));
    rows += cell(samples ? text_of_value(*samples, ChartUnit::kNumber) : "");
    rows += cell(!loss ? "" : std::isfinite(*loss) ? fmt::format("{:.4f}", *loss) : "NaN");
    rows += cell(best ? fmt::format("{:.4f} at step {}", best->value, best->step) : "");
    rows += cell(rate_of(run));
    rows += cell(memory ? text_of_value(*memory, ChartUnit::kBytes) : "");
    rows += cell(saves.empty() ? ""
                               : fmt::format("{}, waited {}", saves.size(),
                                             format_duration(seconds_within(sum_of(saves), 0))));
    rows += cell(fmt::format("{}", run.attempts.size()));
    rows += cell(format_duration(seconds_within(run.last_time - run.first_time, 0))) + "</tr>\n";
  }
  std::string headings;
  for (const char* const text : {"Run", "Steps", "Samples", "Last loss", "Least held-out loss", "Median rate",
                                 "Peak memory", "Checkpoints", "Attempts", "First to last record"})
    headings += heading(text);
  return fmt::format(
      "<section class=\"wide\"><table id=\"results\"><thead><tr>{}</tr></thead><tbody>\n{}"
      "</tbody></table></section>\n",
      headings, rows);
}

std::string chart_section(const Chart& chart) {
  return fmt::format("<section><h2>{}</h2>\n{}</section>\n", html_text(chart.title), svg_chart(chart));
}

/// The seconds of an attempt's parts, and the rest of its time.
std::vector<std::pair<std::string, double>> parts_of(const Attempt& attempt) {
  std::vector<std::pair<std::string, double>> parts;
  double rest = attempt.time_spent_s.at("run_time_s");
  for (const auto& [key, name] : kPartsOfRun) {
    const auto found = attempt.time_spent_s.find(key);
    const double seconds = found == attempt.time_spent_s.end() ? 0 : found->second;
    parts.emplace_back(name, seconds);
    rest -= seconds;
  }
  parts.emplace_back("the rest", rest);
  for (auto& [name, seconds] : parts) seconds = seconds_within(seconds, 0);
  return parts;
}

std::string time_row(std::string_view name, const Attempt& attempt) {
  const double whole = seconds_within(attempt.time_spent_s.at("run_time_s"), 1e-9);
  std::string cells;
  std::string bar;
  int color = 0;
  for (const auto& [part, seconds] : parts_of(attempt)) {
    const double percent = std::min(100 * seconds / whole, 100.0);
    const std::string text = fmt::format("{} ({:.0f}%)", format_duration(seconds), percent);
    cells += cell(text);
    const std::string style =
        color < kPageColors ? fmt::format(R"( class="c{}")", color) : R"( class="rest")";
    bar += fmt::format(R"(<span{} style="width:{:.3f}%" title="{}: {}"></span>)", style, percent,
                       html_text(part), text);
    ++color;
  }
  return fmt::format(
      "<tr><td>{}</td><td>{}</td>{}</tr>\n<tr class=\"bars\"><td colspan=\"{}\"><div "
      "class=\"bar\">{}</div></td></tr>\n",
      name, format_duration(whole), cells, kPartsOfRun.size() + 3, bar);
}

std::string table_of_times(const std::vector<RunHistory>& runs) {
  std::string rows;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    for (const Attempt& attempt : runs[i].attempts) {
      if (!attempt.time_spent_s.contains("run_time_s")) continue;
      const std::string name = swatch(color_of(i), runs[i].name);
      rows += time_row(
          runs[i].attempts.size() == 1 ? name : fmt::format("{}, attempt {}", name, attempt.number), attempt);
    }
  }
  if (rows.empty()) return "";
  std::string headings = heading("Run") + heading("Time");
  for (std::size_t part = 0; part < kPartsOfRun.size(); ++part) {
    headings += fmt::format("<th>{}</th>", swatch(static_cast<int>(part), kPartsOfRun.at(part).name));
  }
  return fmt::format(
      "<section class=\"wide\"><h2>Where the time of rank 0 went</h2>\n<table id=\"times\"><thead><tr>{}{}"
      "</tr></thead><tbody>\n{}</tbody></table>\n<p class=\"note\">Times of the host. With a GPU it runs "
      "ahead in forward and backward, and waits at loss and gradient norm. An attempt that was "
      "killed has no such record.</p></section>\n",
      headings, heading("the rest"), rows);
}

std::string setting_of(const RunHistory& run, const std::string& path) {
  const auto found = run.settings.find(path);
  return found == run.settings.end() ? "" : found->second;
}

std::string table_of_settings(const std::vector<RunHistory>& runs) {
  const bool one = runs.size() == 1;
  std::vector<std::string> paths;
  if (one) {
    for (const auto& [path, value] : runs.front().settings) paths.push_back(path);
  } else {
    paths = differing_settings(runs);
  }
  std::string headings = heading("Setting");
  for (std::size_t i = 0; i < runs.size(); ++i)
    headings += fmt::format("<th>{}</th>", one ? "Value" : swatch(color_of(i), runs[i].name));
  std::string rows;
  for (const std::string& path : paths) {
    rows += "<tr>" + cell(path);
    for (const RunHistory& run : runs) rows += cell(setting_of(run, path));
    rows += "</tr>\n";
  }
  const std::string table = fmt::format(
      "<table id=\"settings\" class=\"settings\"><thead><tr>{}</tr></thead><tbody>\n{}</tbody></table>\n",
      headings, rows);
  if (one)
    return fmt::format(
        "<section class=\"wide\"><details><summary>All settings</summary>\n{}</details></section>\n", table);
  return fmt::format("<section class=\"wide\"><h2>Settings that differ</h2>\n{}</section>\n",
                     paths.empty() ? "<p>None.</p>" : table);
}

}  // namespace

std::vector<Chart> charts_of(const std::vector<RunHistory>& runs) {
  std::vector<Chart> charts;
  Chart loss{.title = "Loss, and held-out loss (dashed)"};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    loss.lines.push_back({runs[i].name + " loss", color_of(i), false, curve(runs[i], "loss")});
    if (!curve(runs[i], "eval_loss").empty())
      loss.lines.push_back({runs[i].name + " held-out loss", color_of(i), true, curve(runs[i], "eval_loss")});
    for (const std::string& set : held_out_sets(runs[i])) {
      loss.lines.push_back({fmt::format("{} {} held-out loss", runs[i].name, set), color_of(i), true,
                            curve(runs[i], fmt::format("eval_{}_loss", set))});
    }
    add_restarts(loss, runs[i], color_of(i));
  }
  charts.push_back(std::move(loss));
  for (const Quantity& quantity : kQuantities) {
    Chart chart{.title = quantity.title, .unit = quantity.unit, .from_zero = quantity.from_zero};
    for (std::size_t i = 0; i < runs.size(); ++i) {
      if (curve(runs[i], quantity.name).empty() || !is_shown(runs[i], quantity.name)) continue;
      chart.lines.push_back({runs[i].name, color_of(i), false, curve(runs[i], quantity.name)});
      add_restarts(chart, runs[i], color_of(i));
    }
    charts.push_back(std::move(chart));
  }
  std::erase_if(charts, [](const Chart& chart) { return !has_points(chart); });
  share_steps(charts);
  return charts;
}

std::vector<std::string> differing_settings(const std::vector<RunHistory>& runs) {
  static const std::set<std::string> kPlaces = {"training.output_dir", "main_process_port", "launch.run_id",
                                                "launch.log_dir", "training.checkpoint.resume_from"};
  std::set<std::string> paths;
  for (const RunHistory& run : runs) {
    for (const auto& [path, value] : run.settings) {
      const bool differs =
          std::any_of(runs.begin(), runs.end(), [&, path = path, value = value](const RunHistory& other) {
            return setting_of(other, path) != value;
          });
      // An origin is the place of a value in a configuration file.
      if (differs && !kPlaces.contains(path) && !path.ends_with("_origin")) paths.insert(path);
    }
  }
  return {paths.begin(), paths.end()};
}

std::string run_page(const std::vector<RunHistory>& runs) {
  std::string title = runs.front().name;
  for (std::size_t i = 1; i < runs.size(); ++i) title += ", " + runs[i].name;
  std::string page = "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n";
  page +=
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'unsafe-inline'\">\n";
  page += "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n";
  page += fmt::format("<title>{}</title>\n<style>{}</style>\n</head>\n<body>\n<main>\n<h1>{}</h1>\n",
                      html_text(title), kPageStyle, html_text(title));
  page += table_of_results(runs) + "<div class=\"charts\">\n";
  for (const Chart& chart : charts_of(runs)) page += chart_section(chart);
  return page + "</div>\n" + table_of_times(runs) + table_of_settings(runs) + "</main>\n</body>\n</html>\n";
}

}  // namespace accel
