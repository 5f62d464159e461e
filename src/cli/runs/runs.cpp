#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/interrupt.hpp"
#include "base/seconds.hpp"
#include "base/text.hpp"
#include "base/visible.hpp"
#include "ckpt/store/run_pulse.hpp"
#include "cli/line/commands.hpp"
#include "cli/output/results.hpp"
#include "core/launch/run_story.hpp"

namespace accel::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// Runs are at most so many directories below the given one.
constexpr int kDeepest = 6;

/// A run of the list.
struct Run {
  fs::path directory;
  launch::RunStory story;  ///< Empty if `damage` is set.
  launch::RunState state = launch::RunState::kKilled;
  std::string damage;  ///< Why the run cannot be read; empty if it can.
  /// When it gave its last sign of life, in seconds since 1970; 0 if that is not known.
  double time = 0;
};

/// Whether a training has `folder` as its output_dir.
bool is_output_dir(const fs::path& folder) {
  std::error_code error;
  return fs::is_regular_file(folder / "config.resolved.json", error) ||
         fs::is_regular_file(folder / "metrics.jsonl", error);
}

/// Adds the output_dirs in `folder` and below. It follows no links, does not look into output_dirs, and
/// leaves out what this user may not list.
void find(const fs::path& folder, int depth, std::vector<fs::path>& found) {
  check_interrupted();
  if (is_output_dir(folder)) return found.push_back(folder);
  if (depth == kDeepest) return;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code gone;
    if (entry->symlink_status(gone).type() == fs::file_type::directory) find(entry->path(), depth + 1, found);
  }
}

Run read_run(const fs::path& directory) {
  Run run;
  run.directory = directory;
  try {
    if (auto story = launch::read_short_run_story(directory)) {
      run.story = std::move(*story);
      run.state = state_of(run.story, ckpt::RunPulse(directory).lives());
      run.time = run.story.end ? run.story.end->time : run.story.line_time;
    } else {
      run.damage = "config.resolved.json is missing or damaged";
    }
  } catch (const Error& error) {
    if (is_by_signal(error.kind())) throw;
    run.damage = error.message();
  }
  return run;
}

bool is_early(const Run& run) {
  return run.damage.empty() && run.state == launch::RunState::kFinished && !run.story.stopped_early.empty();
}

std::string state_text(const Run& run) {
  if (!run.damage.empty()) return "not readable: " + run.damage;
  return launch::state_text(run.story, run.state);
}

std::string ago(double time, double now) {
  constexpr double kDay = 24 * 3600;
  if (time <= 0) return "";
  const double gone = std::max(0.0, now - time);
  return (gone < 2 * kDay ? format_duration(gone) : fmt::format("{:.0f} days", std::floor(gone / kDay))) +
         " ago";
}

void print_text(const std::vector<Run>& runs, Results& out) {
  const double now = seconds_since_1970();
  std::vector<std::vector<std::string>> rows = {{"RUN", "STEP", "LOSS", "HELD-OUT", "WHEN", "STATE"}};
  for (const Run& run : runs) {
    const launch::RunStory& story = run.story;
    std::string step = story.step > 0 || story.max_steps > 0 ? std::to_string(story.step) : "";
    if (story.max_steps > 0) step += fmt::format(" of {}", story.max_steps);
    rows.push_back({run.directory.string(), std::move(step),
                    story.loss ? fmt::format("{:.4f}", *story.loss) : "",
                    story.eval_loss ? fmt::format("{:.4f}", *story.eval_loss) : "", ago(run.time, now),
                    state_text(run)});
  }
  out.table(std::move(rows), {"STEP", "LOSS", "HELD-OUT", "WHEN"});
}

void print_json(const std::vector<Run>& runs, const fs::path& folder, Results& out) {
  Json document{{"path", as_utf8(folder.string())}, {"runs", Json::array()}};
  for (const Run& run : runs) {
    const launch::RunStory& story = run.story;
    Json entry{{"run", as_utf8(run.directory.string())}};
    entry["state"] = run.damage.empty() ? launch::name_of(run.state) : "damaged";
    if (!run.damage.empty()) entry["why"] = as_utf8(run.damage);
    if (run.damage.empty() && run.state == launch::RunState::kFailed)
      entry["why"] = as_utf8(launch::cause_of(*story.end));
    if (is_early(run)) entry["why"] = as_utf8(story.stopped_early);
    entry["step"] = story.step;
    entry["max_steps"] = story.max_steps;
    entry["loss"] = story.loss ? Json(*story.loss) : Json();
    entry["eval_loss"] = story.eval_loss ? Json(*story.eval_loss) : Json();
    entry["time"] = run.time > 0 ? Json(run.time) : Json();
    document["runs"].push_back(std::move(entry));
  }
  out.json(document);
}

ExitCode run_runs(const std::string& given, const Globals& globals) {
  const fs::path folder = given.empty() ? fs::path("runs") : fs::path(given);
  if (!fs::is_directory(folder)) {
    throw Error(ErrorKind::kUsage, fmt::format("'{}' is not a directory", folder.string()))
        .hint(given.empty() ? "runs/ is where trainings write by default; accel runs DIR looks elsewhere"
                            : "");
  }
  std::vector<fs::path> directories;
  find(folder, 0, directories);
  std::vector<Run> runs;
  runs.reserve(directories.size());
  for (const fs::path& directory : directories) runs.push_back(read_run(directory));
  // The newest sign of life comes first. Those that run go before the others.
  std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) {
    const auto key = [](const Run& run) {
      return std::pair(run.damage.empty() && run.state == launch::RunState::kRunning,
                       std::isfinite(run.time) ? run.time : 0);
    };
    return key(a) != key(b) ? key(a) > key(b) : a.directory < b.directory;
  });
  if (globals.json) {
    print_json(runs, folder, *globals.out);
  } else if (runs.empty()) {
    globals.out->line(fmt::format("{}: no runs", folder.string()));
  } else {
    print_text(runs, *globals.out);
  }
  return ExitCode::kSuccess;
}

}  // namespace

void add_runs(CommandLine& line) {
  Command command = line.add("runs", "List the trainings below a directory: how far each is, and its state");
  const auto folder = std::make_shared<std::string>();
  command.positional("DIR", *folder, "Where to look; runs by default", Command::Need::kOptional, "DIR");
  command.does([folder](const Globals& globals) { return run_runs(*folder, globals); });
}

}  // namespace accel::cli
