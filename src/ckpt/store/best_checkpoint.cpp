#include "ckpt/store/best_checkpoint.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.hpp"
#include "base/files/file.hpp"
#include "base/files/json_text.hpp"
#include "base/interrupt.hpp"
#include "ckpt/store/resume_point.hpp"
#include "ckpt/store/run_state.hpp"

namespace accel::ckpt {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMostMetricsBytes = std::uint64_t{1} << 32;

/// The state of a whole checkpoint. It is empty if an earlier accel wrote a file of another form.
RunState state_of(const fs::path& checkpoint) {
  try {
    return read_run_state(checkpoint / kRunStateName);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kUsage) throw;
    return {};
  }
}

}  // namespace

double BestMetric::worst() const {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return greater_ ? -kInfinity : kInfinity;
}

std::optional<std::int64_t> best_step(const std::vector<std::int64_t>& steps,
                                      const std::map<std::int64_t, double>& values,
                                      const BestMetric& metric) {
  std::optional<std::int64_t> best;
  for (const std::int64_t step : steps) {
    const auto value = values.find(step);
    if (value != values.end() && (!best || !metric.is_better(values.at(*best), value->second))) best = step;
  }
  return best;
}

std::string held_out_setting(const std::string& set) {
  return "contents of training.data.eval" + (set.empty() ? "" : "_sets." + set) + " (CRC-32 of samples)";
}

std::string held_out_value(std::uint32_t fingerprint, std::int64_t length) {
  return fmt::format("{:08x}{}", fingerprint, length > 0 ? fmt::format(", {} tokens a sample", length) : "");
}

bool are_same_held_out(const std::string& one, const std::string& other) {
  return one == other || one.starts_with(other + ",") || other.starts_with(one + ",");
}

std::map<std::int64_t, double> reported_values(const fs::path& metrics, const std::string& key) {
  std::map<std::int64_t, double> values;
  if (!fs::exists(metrics)) return values;
  const std::string text = read_text_file(metrics, kMostMetricsBytes);
  const std::string quoted = '"' + key + '"';
  for (std::size_t begin = 0; begin < text.size();) {
    check_interrupted();
    const std::size_t end = text.find('\n', begin);
    if (end == std::string::npos) break;
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    if (line.find(quoted) == std::string_view::npos) continue;  // Most lines need not be parsed.
    const auto record = parse_json_or_discard(line);
    if (!record.is_object() || !record.contains("step") || !record.at("step").is_number_integer()) continue;
    const auto value = record.find(key);
    if (value == record.end() || !value->is_number() || !std::isfinite(value->get<double>())) continue;
    values[record.at("step").get<std::int64_t>()] = value->get<double>();
  }
  return values;
}

std::map<std::int64_t, double> checkpoint_values(const RunCheckpoints& checkpoints,
                                                 const std::vector<std::int64_t>& steps,
                                                 const BestMetric& metric, const fs::path& metrics) {
  std::map<std::int64_t, double> values;
  std::vector<std::int64_t> unknown;
  for (const std::int64_t step : steps) {
    if (!checkpoints.is_of_training(step)) continue;
    const std::map<std::string, double> evaluation = state_of(checkpoints.path_of(step)).evaluation;
    if (const auto value = evaluation.find(metric.key()); value != evaluation.end()) {
      values[step] = value->second;
    } else {
      unknown.push_back(step);
    }
  }
  if (unknown.empty()) return values;
  const std::map<std::int64_t, double> reported = reported_values(metrics, metric.key());
  for (const std::int64_t step : unknown) {
    if (const auto value = reported.find(step); value != reported.end()) values[step] = value->second;
  }
  return values;
}

std::optional<std::int64_t> best_checkpoint(const RunCheckpoints& checkpoints,
                                            const std::vector<std::int64_t>& steps, const BestMetric& metric,
                                            const fs::path& metrics) {
  std::map<std::int64_t, double> values = checkpoint_values(checkpoints, steps, metric, metrics);
  const std::string key = held_out_setting(metric.set());
  std::string newest;  // The fingerprint of the newest checkpoint that has one.
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    if (!values.contains(*step)) continue;
    const std::map<std::string, std::string> settings = state_of(checkpoints.path_of(*step)).settings;
    const auto data = settings.find(key);
    if (data == settings.end()) continue;
    if (newest.empty()) newest = data->second;
    if (!are_same_held_out(data->second, newest)) values.erase(*step);
  }
  return best_step(steps, values, metric);
}

std::optional<std::int64_t> best_checkpoint(const RunCheckpoints& checkpoints, const BestMetric& metric,
                                            const fs::path& metrics) {
  std::vector<std::int64_t> whole;
  for (const std::int64_t step : checkpoints.steps()) {
    if (checkpoints.is_of_training(step) && !why_not_whole(checkpoints.path_of(step), step))
      whole.push_back(step);
  }
  return best_checkpoint(checkpoints, whole, metric, metrics);
}

}  // namespace accel::ckpt
