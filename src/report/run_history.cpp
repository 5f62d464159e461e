#include "report/run_history.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.hpp"
#include "base/files/file.hpp"
#include "base/files/json_text.hpp"

namespace accel {
namespace {

using nlohmann::json;

constexpr std::uint64_t kLargestFile = std::uint64_t{1} << 32;

/// The number under `name`; absent if there is none that a double can hold.
std::optional<double> number_in(const json& record, const char* name) {
  const auto found = record.find(name);
  if (found == record.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

void add_record(RunHistory& history, const json& record) {
  if (!record.is_object() || !record.contains("step") || !record["step"].is_number_integer())
    throw Error(ErrorKind::kCorrupt, "it is not a JSON object with a whole number 'step'");
  const auto step = record["step"].get<double>();
  const auto attempt =
      static_cast<std::int64_t>(std::clamp(number_in(record, "attempt").value_or(0), 0.0, 1e9));
  if (history.attempts.empty() || history.attempts.back().number != attempt)
    history.attempts.push_back({attempt, step, {}});
  if (const auto time = number_in(record, "time")) {
    if (history.first_time == 0) history.first_time = *time;
    history.last_time = *time;
  }
  const bool is_time_spent = record.contains("run_time_s");
  for (const auto& [name, value] : record.items()) {
    if (name == "step" || name == "time" || name == "attempt") continue;
    if (!value.is_number() && !value.is_null()) continue;
    const double shown = value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
    if (is_time_spent) {
      history.attempts.back().time_spent_s[name] = shown;
    } else {
      history.curves[name].push_back({step, shown});
    }
  }
}

void flatten(const json& document, const std::string& path, std::map<std::string, std::string>& settings) {
  if (!document.is_object()) {
    settings[path] = document.dump(-1, ' ', false, json::error_handler_t::replace);
    return;
  }
  for (const auto& [key, value] : document.items())
    flatten(value, path.empty() ? key : fmt::format("{}.{}", path, key), settings);
}

}  // namespace

std::vector<std::string> held_out_sets(const RunHistory& run) {
  constexpr std::string_view kBegin = "eval_";
  constexpr std::string_view kEnd = "_loss";
  std::vector<std::string> names;
  for (const auto& [name, points] : run.curves) {
    if (!name.starts_with(kBegin) || !name.ends_with(kEnd) || name.size() <= kBegin.size() + kEnd.size())
      continue;
    names.push_back(name.substr(kBegin.size(), name.size() - kBegin.size() - kEnd.size()));
  }
  return names;
}

bool is_run(const std::filesystem::path& directory) {
  return std::filesystem::is_regular_file(directory / "metrics.jsonl");
}

AddedLines add_metrics(RunHistory& history, std::string_view text, const std::string& file,
                       std::int64_t first_line) {
  AddedLines added;
  for (std::size_t end = 0; (end = text.find('\n', added.bytes)) != std::string_view::npos;) {
    try {
      add_record(history, parse_json_or_discard(text.substr(added.bytes, end - added.bytes)));
    } catch (Error& error) {
      error.add_context(fmt::format("'{}', line {}", file, first_line + added.lines));
      throw;
    }
    added.bytes = end + 1;
    ++added.lines;
  }
  return added;
}

RunHistory parse_metrics(std::string_view text, const std::string& file) {
  RunHistory history;
  add_metrics(history, text, file, 1);
  return history;
}

std::map<std::string, std::string> flat_settings(const json& document) {
  std::map<std::string, std::string> settings;
  flatten(document, "", settings);
  return settings;
}

void require_run(const std::filesystem::path& directory) {
  if (is_run(directory)) return;
  const bool exists = std::filesystem::is_directory(directory);
  throw Error(ErrorKind::kUsage,
              fmt::format("'{}' is not the output_dir of a training: {}", directory.string(),
                          exists ? "it has no metrics.jsonl" : "there is no such directory"))
      .hint("training.output_dir names it; by default it is runs/ and the name of the YAML file");
}

std::map<std::string, std::string> read_settings(const std::filesystem::path& directory) {
  std::map<std::string, std::string> settings;
  const std::filesystem::path file = directory / "config.resolved.json";
  if (std::filesystem::exists(file))
    use_json_file(file, kLargestFile, [&](const json& document) { settings = flat_settings(document); });
  return settings;
}

RunHistory read_run_history(const std::filesystem::path& directory, std::string name) {
  require_run(directory);
  const std::filesystem::path metrics = directory / "metrics.jsonl";
  RunHistory history = parse_metrics(read_text_file(metrics, kLargestFile), metrics.string());
  history.name = std::move(name);
  history.settings = read_settings(directory);
  return history;
}

}  // namespace accel
