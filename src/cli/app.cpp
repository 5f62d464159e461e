#include "cli/app.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>

#include "base/error.hpp"
#include "base/interrupt.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "cli/arguments.hpp"
#include "cli/commands.hpp"
#include "version.hpp"

namespace accel::cli {
namespace {

constexpr std::string_view kExitCodes =
    "\nExit codes: 0 success, 1 failure, 2 usage or configuration, 3 verify or diff found something,\n"
    "4 checkpoint missing or incomplete, 5 checkpoint corrupt, 6 a worker failed, 7 stopped for preemption\n"
    "after saving, 130 and 143 interrupted.";

struct Shell {
  CLI::App app{"Trains TorchScript models sharded over processes, and works on PyTorch's checkpoints.",
               "accel"};
  Globals globals;
  Action action;
  log::Color color = log::Color::kAuto;
};

void add_global_flags(Shell& shell) {
  CLI::App& app = shell.app;
  app.add_flag("--quiet", shell.globals.quiet, "Only warnings and errors");
  app.add_flag("--verbose", shell.globals.verbose, "Say more about what is done");
  app.add_flag("--json", shell.globals.json, "Results as JSON on stdout, errors as JSON on stderr");
  const std::map<std::string, log::Color> colors = {
      {"auto", log::Color::kAuto}, {"always", log::Color::kAlways}, {"never", log::Color::kNever}};
  app.add_option("--color", shell.color, "Colour on stderr: auto, always or never")
      ->transform(CLI::CheckedTransformer(colors, CLI::ignore_case).description(""))
      ->type_name("WHEN");
  app.set_version_flag("--version", fmt::format("accel {}", kVersion), "Print the version");
}

void add_commands(Shell& shell) {
  shell.app.require_subcommand(1);
  add_launch(shell.app, shell.globals, shell.action);
  add_save(shell.app, shell.globals, shell.action);
  add_load(shell.app, shell.globals, shell.action);
  add_merge_weights(shell.app, shell.globals, shell.action);
  add_inspect(shell.app, shell.globals, shell.action);
  for (CLI::App* command : shell.app.get_subcommands({})) {
    command->fallthrough();
    command->footer(command->get_footer() + std::string(kExitCodes));
  }
  shell.app.footer(std::string(kExitCodes));
}

void check_command(const CLI::App& app, const Arguments& arguments) {
  if (!arguments.command) return;
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  if (std::find(names.begin(), names.end(), *arguments.command) != names.end()) return;
  Error error(ErrorKind::kUsage, fmt::format("unknown command '{}'", *arguments.command));
  if (const auto near = nearest(*arguments.command, names)) {
    throw std::move(error).hint(fmt::format("did you mean '{}'?", *near));
  }
  throw std::move(error).hint("accel --help lists the commands");
}

/// The flags of `app` by their long names.
std::vector<std::string> long_flags(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

[[noreturn]] void fail_usage(const CLI::App& app, const CLI::ParseError& failure) {
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  const std::string help =
      chosen.empty() ? "accel --help" : fmt::format("accel {} --help", chosen.front()->get_name());
  const auto* extras = dynamic_cast<const CLI::ExtrasError*>(&failure);
  const std::vector<std::string> left = app.remaining(true);
  if (dynamic_cast<const CLI::RequiredError*>(&failure) != nullptr && chosen.empty()) {
    throw Error(ErrorKind::kUsage, "a command is needed").hint("accel --help lists the commands");
  }
  if (extras == nullptr || left.empty()) {
    throw Error(ErrorKind::kUsage, failure.what()).hint(fmt::format("see {}", help));
  }
  const std::string& word = left.front();
  if (!word.starts_with("-")) {
    throw Error(ErrorKind::kUsage, fmt::format("unexpected argument '{}'", word))
        .hint(fmt::format("see {}", help));
  }
  std::vector<std::string> known = long_flags(app);
  for (const CLI::App* command : chosen) {
    const std::vector<std::string> more = long_flags(*command);
    known.insert(known.end(), more.begin(), more.end());
  }
  const std::string flag = word.substr(0, word.find('='));
  const auto near = nearest(flag, known);
  throw Error(ErrorKind::kUsage, fmt::format("unknown flag '{}'", flag))
      .hint(near ? fmt::format("did you mean '{}'?", *near) : fmt::format("see {}", help));
}

/// Parses and runs; absent means that help or the version was asked for and has been printed.
ExitCode parse_and_run(Shell& shell, const Arguments& arguments, std::ostream& out) {
  check_command(shell.app, arguments);
  try {
    std::vector<std::string> reversed(arguments.own.rbegin(), arguments.own.rend());
    shell.app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    const std::vector<CLI::App*> chosen = shell.app.get_subcommands();
    out << (chosen.empty() ? shell.app.help() : chosen.front()->help("accel"));
    return ExitCode::kSuccess;
  } catch (const CLI::CallForVersion&) {
    out << fmt::format("accel {}\n", kVersion);
    return ExitCode::kSuccess;
  } catch (const CLI::ParseError& failure) {
    fail_usage(shell.app, failure);
  }
  const log::Level level = shell.globals.quiet     ? log::Level::kQuiet
                           : shell.globals.verbose ? log::Level::kVerbose
                                                   : log::Level::kNormal;
  log::init("accel", level, shell.color);
  // The launcher has its own way with signals.
  std::optional<InterruptGuard> guard;
  if (!shell.app.got_subcommand("launch")) guard.emplace();
  return shell.action();
}

void print_error(const Error& error, bool json, std::ostream& err) {
  if (json) {
    nlohmann::ordered_json document;
    document["type"] = "error";
    document["kind"] = name_of(error.kind());
    document["exit_code"] = to_int(exit_code_of(error.kind()));
    document["message"] = error.message();
    if (!error.advice().empty()) document["hint"] = error.advice();
    err << document.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
  } else {
    log::error(error.message());
    if (!error.advice().empty()) err << "hint: " << error.advice() << '\n';
  }
  err.flush();
}

}  // namespace

ExitCode run(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
  // Before parsing is over, what was typed decides how an error is shown.
  Shell shell;
  const bool json = std::find(arguments.begin(), arguments.end(), "--json") != arguments.end();
  try {
    const Arguments parts = take_apart(arguments);
    shell.globals.out = &out;
    shell.globals.program = parts.program;
    add_global_flags(shell);
    add_commands(shell);
    const ExitCode code = parse_and_run(shell, parts, out);
    out.flush();
    if (!out) throw Error(ErrorKind::kFailure, "cannot write to stdout");
    return code;
  } catch (const Error& error) {
    print_error(error, json, err);
    return exit_code_of(error.kind());
  } catch (const std::exception& error) {
    print_error(Error(ErrorKind::kFailure, error.what()), json, err);
    return ExitCode::kFailure;
  }
}

}  // namespace accel::cli
