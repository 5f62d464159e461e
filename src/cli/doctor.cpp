#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/text.hpp"
#include "cli/commands.hpp"
#include "cli/output/results.hpp"
#include "core/launch/hang/hang_findings.hpp"
#include "core/launch/rank_statuses.hpp"

namespace accel::cli {
namespace {

struct DoctorOptions {
  std::string target;
  bool without_stacks = false;
};

ExitCode run_doctor(const DoctorOptions& options, const Globals& globals) {
  const std::vector<launch::RankStatus> statuses =
      launch::find_rank_statuses(options.target, !options.without_stacks);
  const std::vector<std::string> findings = launch::findings(statuses);
  if (globals.json) {
    auto ranks = nlohmann::ordered_json::array();
    for (const launch::RankStatus& status : statuses) ranks.push_back(launch::document_of(status));
    globals.out->json({{"findings", findings}, {"ranks", std::move(ranks)}});
    return ExitCode::kSuccess;
  }
  constexpr std::size_t kStackLines = 12;
  globals.out->lines(findings);
  if (!findings.empty()) globals.out->line();
  std::vector<std::string> table = split(launch::table_of_ranks(statuses, kStackLines), '\n');
  table.pop_back();
  globals.out->lines(table);
  return ExitCode::kSuccess;
}

}  // namespace

void add_doctor(CommandLine& line) {
  Command command = line.add("doctor", "Show where each rank of a run stands, or stood when it ended");
  auto options = std::make_shared<DoctorOptions>();
  command.positional("RUN_DIR|PID", options->target,
                     "The output_dir or log directory of a run, or the process of a launcher or a rank");
  command.flag("--no-stacks", options->without_stacks,
               "Do not take call stacks, for which a process is stopped for some milliseconds");
  command.does([options](const Globals& globals) { return run_doctor(*options, globals); });
}

}  // namespace accel::cli
