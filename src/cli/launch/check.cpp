#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "cli/launch/check_report.hpp"
#include "cli/launch/launch_flags.hpp"
#include "cli/launch/training_check.hpp"
#include "cli/line/arguments.hpp"
#include "cli/line/commands.hpp"
#include "core/config/keys/json_schema.hpp"
#include "core/config/resolve/advice.hpp"
#include "core/config/resolve/load_config.hpp"
#include "core/config/resolve/no_effect.hpp"
#include "core/config/resolve/resolved_values.hpp"
#include "core/launch/find_program.hpp"

namespace accel::cli {
namespace {

struct CheckOptions {
  LaunchWords words;
  bool prints_schema = false;
  bool shows_all = false;
  LaunchFlags flags;
};

ExitCode print_schema(const CheckOptions& options, const Globals& globals) {
  if (options.words.has_configuration() || !globals.program.empty() || !options.flags.settings().empty()) {
    throw Error(ErrorKind::kUsage, "--schema prints the schema of all configurations, and checks none")
        .hint("accel check --schema, without a file, a program and other flags");
  }
  globals.out->json(config::json_schema());
  return ExitCode::kSuccess;
}

/// Throws the errors of a launch for programs that do not exist. The installed accel-worker is not needed: a
/// configuration may be checked on another machine.
void require_programs(const config::LoadedConfig& loaded, const Globals& globals) {
  if (!globals.program.empty()) {
    require_script(globals.program);
    (void)launch::find_program(globals.program.front(), environment_variable);
  } else if (const std::filesystem::path& worker = loaded.config.launch.worker; !worker.empty()) {
    config::blamed_on("launch.worker", loaded.settings,
                      [&] { return launch::find_worker({}, worker, environment_variable); });
  }
}

ExitCode run_check(const CheckOptions& options, const Globals& globals) {
  if (options.prints_schema) return print_schema(options, globals);
  const bool runs_program = !globals.program.empty();
  config::ConfigRequest request = options.flags.request(options.words.configuration("check", runs_program));
  request.runs_program = runs_program;
  request.command = "check";
  config::LoadedConfig loaded = config::load_config(request);
  require_programs(loaded, globals);
  const std::optional<TrainingData> data = check_training(loaded);
  if (data) {
    for (const auto* texts : {&data->warnings, &data->warnings_of_ranks})
      loaded.warnings.insert(loaded.warnings.end(), texts->begin(), texts->end());
  }
  if (const std::string text = finished_run(loaded); !text.empty()) loaded.warnings.push_back(text);
  for (std::string& text : config::advice_for(loaded)) loaded.warnings.push_back(std::move(text));
  const CheckReport report{request.file.empty() ? "the configuration" : request.file.string(),
                           config::resolved_values(loaded), loaded.warnings,
                           config::settings_without_effect(loaded), data};
  const ShownValues shown = options.shows_all ? ShownValues::kAll : ShownValues::kSet;
  globals.json ? print_check_json(report, *globals.out) : print_check_text(report, shown, *globals.out);
  return ExitCode::kSuccess;
}

}  // namespace

void add_check(CommandLine& line) {
  Command command = line.add(
      "check", "Check a configuration without running it, and show what is set and where",
      "\nThe other flags are those of launch. Put `check` in place of `launch` to see what a run would be "
      "given.\n\naccel check [CONFIG.yaml] [flags] [--] PROGRAM [ARGS] checks the configuration of a run of "
      "any program.\n");
  const auto options = std::make_shared<CheckOptions>();
  options->words.add_to(command);
  command.flag("--schema", options->prints_schema,
               "Print a JSON Schema of configurations for editors, and check nothing");
  command.flag("--all", options->shows_all, "Show every value, also the defaults");
  options->flags.add_to(command);
  command.does([options](const Globals& globals) { return run_check(*options, globals); });
}

}  // namespace accel::cli
