#include "cli/app.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <string>

#include "base/error.hpp"
#include "base/host/signal_source.hpp"
#include "base/interrupt.hpp"
#include "base/log.hpp"
#include "base/terminal.hpp"
#include "base/visible.hpp"
#include "cli/line/build_info.hpp"
#include "cli/line/candidates.hpp"
#include "cli/line/commands.hpp"
#include "cli/output/results.hpp"

namespace accel::cli {
namespace {

std::string version_text() {
  return fmt::format("accel {}\ncommit {}\nlibtorch {}\nNCCL {}", kBuildInfo.version, kBuildInfo.commit,
                     kBuildInfo.libtorch, kBuildInfo.nccl);
}

void add_commands(CommandLine& line) {
  line.group("Train");
  add_launch(line);
  add_check(line);
  add_plan(line);
  add_config(line);
  add_import(line);
  line.group("Look at a run");
  add_runs(line);
  add_checkpoints(line);
  add_report(line);
  add_evaluate(line);
  add_watch(line);
  add_doctor(line);
  line.group("Look at checkpoints and models");
  add_inspect(line);
  add_verify(line);
  add_diff(line);
  line.group("Write checkpoints and models");
  add_merge_weights(line);
  add_save(line);
  add_load(line);
  add_repair(line);
  line.group("Set up");
  add_env(line);
  add_completion(line);
}

/// Whether verdicts on stdout have colours, which log::init() decides for stderr in the same way.
bool has_colors(log::Color color, const std::ostream& out) {
  if (color != log::Color::kAuto) return color == log::Color::kAlways;
  return &out == &std::cout && ::isatty(STDOUT_FILENO) == 1 && allows_colors();
}

ExitCode parse_and_run(CommandLine& line, const Arguments& arguments, std::ostream& out,
                       std::optional<SignalSource>& signals) {
  if (!line.parse(arguments, out)) return ExitCode::kSuccess;
  const Globals& globals = line.globals();
  const log::Level level = globals.quiet     ? log::Level::kQuiet
                           : globals.verbose ? log::Level::kVerbose
                                             : log::Level::kNormal;
  log::init("accel", level, globals.color);
  if (has_colors(globals.color, out)) globals.out->use_colors();
  std::optional<InterruptGuard> guard;
  if (line.is_chosen("launch") || line.is_chosen("evaluate")) {
    line.globals().signals = &signals.emplace();
  } else {
    guard.emplace();
  }
  return line.action()(globals);
}

void print_error(const Error& error, bool json, std::ostream& err) {
  if (json) {
    nlohmann::ordered_json document;
    document["type"] = "error";
    document["kind"] = name_of(error.kind());
    document["exit_code"] = to_int(exit_code_of(error.kind()));
    document["message"] = as_utf8(error.message());
    if (!error.advice().empty()) document["hint"] = as_utf8(error.advice());
    err << visible_json(document.dump()) << '\n';
  } else {
    // The report of a failed run has several lines. Any other message is printed as one line, whatever names
    // it contains.
    log::error(error.kind() == ErrorKind::kWorker ? error.message() : visible(error.message()));
    if (!error.advice().empty()) {
      const std::string hint = "hint: " + visible(error.advice());
      err << (&err == &std::cerr ? wrapped_on(STDERR_FILENO, hint, 6) : hint) << '\n';
    }
  }
  err.flush();
}

}  // namespace

ExitCode run(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
  bool json = false;
  // A launch has it until its last message is written.
  std::optional<SignalSource> signals;
  try {
    CommandLine line{version_text()};
    const auto width = &out == &std::cout ? terminal_width(STDOUT_FILENO) : std::nullopt;
    Results results(out, width);
    line.globals().out = &results;
    line.wrap_help(width);
    add_commands(line);
    // The words behind it are a command line that is being typed, which is not parsed.
    if (!arguments.empty() && arguments.front() == "__complete") {
      for (const std::string& candidate :
           candidates(line.outline(), {arguments.begin() + 1, arguments.end()}))
        out << candidate << '\n';
      return ExitCode::kSuccess;
    }
    if (arguments.empty()) {
      // Whoever types the name alone sees what there is; a script that has lost its command fails.
      out << line.help();
      return ExitCode::kUsage;
    }
    const Arguments apart = take_apart(with_help_flag(arguments), line.outline());
    // Parsing itself may fail. What stands behind "--" or in a program's arguments is not a flag of accel.
    const auto flags_end = std::find(apart.own.begin(), apart.own.end(), "--");
    json = std::find(apart.own.begin(), flags_end, "--json") != flags_end;
    const ExitCode code = parse_and_run(line, apart, out, signals);
    results.flush();
    return code;
  } catch (const std::exception& failure) {
    const Error error = error_of(failure);
    print_error(error, json, err);
    return exit_code_of(error.kind());
  }
}

}  // namespace accel::cli
