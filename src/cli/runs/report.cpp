#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/files/atomic_file.hpp"
#include "base/text.hpp"
#include "base/visible.hpp"
#include "cli/line/commands.hpp"
#include "cli/output/results.hpp"
#include "report/run_history.hpp"
#include "report/run_page.hpp"

namespace accel::cli {
namespace {

struct ReportOptions {
  std::vector<std::string> runs;
  std::string output;
};

ExitCode run_report(const ReportOptions& options, const Globals& globals) {
  std::vector<RunHistory> runs;
  for (const std::string& run : options.runs) {
    const std::filesystem::path directory(run);
    runs.push_back(read_run_history(directory, directory.lexically_normal().string()));
  }
  std::filesystem::path file = options.output;
  if (file.empty()) file = std::filesystem::path(options.runs.front()) / "report.html";
  const std::string page = run_page(runs);
  write_file_atomically(file, page);
  if (globals.json) {
    globals.out->json({{"file", as_utf8(file.string())}, {"bytes", page.size()}, {"runs", runs.size()}});
  } else {
    globals.out->line(fmt::format("{}: {} {}, {}", file.string(), runs.size(),
                                  runs.size() == 1 ? "run" : "runs", format_bytes(page.size())));
  }
  return ExitCode::kSuccess;
}

}  // namespace

void add_report(CommandLine& line) {
  Command command = line.add("report", "Write an HTML page with the curves of one or more runs");
  auto options = std::make_shared<ReportOptions>();
  command.positionals("RUN", options->runs, "The output_dir of a training, live or ended");
  command.text("--output", "FILE", options->output, "The page; by default report.html in the first RUN");
  command.does([options](const Globals& globals) { return run_report(*options, globals); });
}

}  // namespace accel::cli
