#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace accel {

struct CurvePoint {
  double step = 0;
  double value = 0;  ///< NaN for what is null in the file: an infinity or a NaN.
};

/// A launch or restart of a run.
struct Attempt {
  std::int64_t number = 0;
  double first_step = 0;                       ///< The step of its first record.
  std::map<std::string, double> time_spent_s;  ///< By the keys of kPartsOfRun and "run_time_s"; may be empty.
};

/// What a run has written of itself, in the order of its files.
struct RunHistory {
  std::string name;  ///< As texts call the run.
  /// The numbers of metrics.jsonl by their names, such as "loss" and "eval_loss".
  std::map<std::string, std::vector<CurvePoint>> curves;
  std::vector<Attempt> attempts;
  /// The values of config.resolved.json as JSON, by dotted path.
  std::map<std::string, std::string> settings;
  double first_time = 0;  ///< Seconds since 1970 of the first and the last record; 0 without a record.
  double last_time = 0;
};

/// The names of further sets of held-out data of a run (training.data.eval_sets), whose losses are the curves
/// "eval_NAME_loss".
[[nodiscard]] std::vector<std::string> held_out_sets(const RunHistory& run);

/// Whether `directory` has metrics, and is thereby the output_dir of a training.
[[nodiscard]] bool is_run(const std::filesystem::path& directory);

/// Throws Error (kUsage) if is_run() says no.
void require_run(const std::filesystem::path& directory);

/// Reads metrics.jsonl and, if it is there, config.resolved.json of a training's output_dir. The run may be
/// going on: a last line without a newline is left out. Throws Error (kUsage) for a directory that is not
/// the output_dir of a training, and Error (kCorrupt) for a line that is not a record.
[[nodiscard]] RunHistory read_run_history(const std::filesystem::path& directory, std::string name);

/// The values of config.resolved.json in `directory`; none without that file.
[[nodiscard]] std::map<std::string, std::string> read_settings(const std::filesystem::path& directory);

struct AddedLines {
  std::size_t bytes = 0;
  std::int64_t lines = 0;
};

/// Adds the whole lines of `text` to a history, and returns how much they are. Throws Error (kCorrupt) that
/// names the file and the line; `first_line` is the number of the first one.
AddedLines add_metrics(RunHistory& history, std::string_view text, const std::string& file,
                       std::int64_t first_line);

/// The history in the text of a metrics.jsonl, without settings. Throws what add_metrics() throws.
[[nodiscard]] RunHistory parse_metrics(std::string_view text, const std::string& file);

/// The values of a configuration by dotted path, as JSON; a list is one value.
[[nodiscard]] std::map<std::string, std::string> flat_settings(const nlohmann::json& document);

}  // namespace accel
