#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/seconds.hpp"
#include "base/text.hpp"
#include "cli/line/commands.hpp"
#include "cli/output/results.hpp"
#include "core/launch/hang/hang_findings.hpp"
#include "core/launch/rank_statuses.hpp"
#include "core/launch/run_story.hpp"

namespace accel::cli {
namespace {

/// A rank of a live run that waits for less does well.
constexpr std::chrono::seconds kLongWait{1};

struct DoctorOptions {
  std::string target;
  bool takes_stacks = false;
  bool without_stacks = false;
};

/// Whether a process of the run is there, on this machine or another one.
bool lives(const std::vector<launch::RankStatus>& statuses) {
  return std::any_of(statuses.begin(), statuses.end(),
                     [](const launch::RankStatus& status) { return !status.state.empty(); });
}

ExitCode run_doctor(const DoctorOptions& options, const Globals& globals) {
  const std::optional<launch::RunStory> story =
      std::filesystem::is_directory(options.target) ? launch::read_run_story(options.target) : std::nullopt;
  std::vector<launch::RankStatus> statuses;
  try {
    statuses = launch::find_rank_statuses(options.target);
  } catch (const Error& error) {
    // The end of a run is told without the records, too.
    if (error.kind() != ErrorKind::kMissing || !story || !story->end) throw;
    log::warn(error.message());
  }
  const auto least = lives(statuses) ? kLongWait : std::chrono::seconds(0);
  const std::vector<std::string> findings = launch::findings(statuses, least);
  // A process stops while its stacks are taken, so that ranks that do well are left alone.
  const bool is_stuck = !findings.empty() && lives(statuses);
  if (options.takes_stacks || (is_stuck && !options.without_stacks)) launch::take_stacks(statuses);
  if (globals.json) {
    auto ranks = nlohmann::ordered_json::array();
    for (const launch::RankStatus& status : statuses) ranks.push_back(launch::document_of(status));
    nlohmann::ordered_json document;
    if (story) document["run"] = launch::document_of(*story);
    document["findings"] = findings;
    document["ranks"] = std::move(ranks);
    globals.out->json(document);
    return ExitCode::kSuccess;
  }
  constexpr std::size_t kStackLines = 12;
  if (story) {
    // Processes on another machine cannot be seen, but an end is written when all have ended.
    globals.out->lines(launch::lines_of(*story, !story->end && lives(statuses), seconds_since_1970()));
    globals.out->line();
  }
  globals.out->lines(findings);
  if (!findings.empty()) globals.out->line();
  if (statuses.empty()) return ExitCode::kSuccess;
  std::vector<std::string> table = split(launch::table_of_ranks(statuses, kStackLines), '\n');
  table.pop_back();
  globals.out->lines(table);
  return ExitCode::kSuccess;
}

}  // namespace

void add_doctor(CommandLine& line) {
  Command command = line.add("doctor", "Show how a run stands or ended, and where each of its ranks is");
  auto options = std::make_shared<DoctorOptions>();
  command.positional("RUN_DIR|PID", options->target,
                     "The output_dir or log directory of a run, or the process of a launcher or a rank");
  command.flag("--stacks", options->takes_stacks, "Take call stacks although no rank is stuck");
  command.flag("--no-stacks", options->without_stacks,
               "Do not take call stacks, for which a process is stopped for some milliseconds");
  command.does([options](const Globals& globals) { return run_doctor(*options, globals); });
}

}  // namespace accel::cli
