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

bool is_run(const std::filesystem::path& directory) {
  return std::filesystem::is_regular_file(directory / "metrics.jsonl");
}

RunHistory parse_metrics(std::string_view text) {
  RunHistory history;
  std::int64_t line = 1;
  for (std::size_t begin = 0, end = 0; (end = text.find('\n', begin)) != std::string_view::npos; ++line) {
    try {
      add_record(history, parse_json_or_discard(text.substr(begin, end - begin)));
    } catch (Error& error) {
      error.add_context(fmt::format("line {}", line));
      throw;
    }
    begin = end + 1;
  }
  return history;
}

std::map<std::string, std::string> flat_settings(const json& document) {
  std::map<std::string, std::string> settings;
  flatten(document, "", settings);
  return settings;
}

RunHistory read_run_history(const std::filesystem::path& directory, std::string name) {
  const std::filesystem::path metrics = directory / "metrics.jsonl";
  if (!is_run(directory)) {
    throw Error(ErrorKind::kUsage,
                fmt::format("'{}' is not the output_dir of a training: {}", directory.string(),
                            std::filesystem::is_directory(directory) ? "it has no metrics.jsonl"
                                                                     : "there is no such directory"))
        .hint("training.output_dir names it; by default it is runs/ and the name of the YAML file");
  }
  RunHistory history;
  try {
    history = parse_metrics(read_text_file(metrics, kLargestFile));
  } catch (Error& error) {
    error.add_context(fmt::format("'{}'", metrics.string()));
    throw;
  }
  history.name = std::move(name);
  const std::filesystem::path config = directory / "config.resolved.json";
  if (std::filesystem::exists(config)) {
    use_json_file(config, kLargestFile,
                  [&](const json& document) { history.settings = flat_settings(document); });
  }
  return history;
}

}  // namespace accel
