#include <fmt/format.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/visible.hpp"
#include "cli/launch/launch_flags.hpp"
#include "cli/launch/training_check.hpp"
#include "cli/line/arguments.hpp"
#include "cli/line/build_info.hpp"
#include "cli/line/commands.hpp"
#include "core/config/resolve/load_config.hpp"
#include "core/config/settings/settings.hpp"
#include "core/launch/launch.hpp"
#include "report/metrics_follower.hpp"
#include "report/run_status.hpp"

namespace accel::cli {
namespace {

struct LaunchOptions {
  LaunchWords words;
  LaunchFlags flags;
  bool discards_later = false;  ///< The run is rolled back to training.checkpoint.resume.
  bool without_progress = false;
};

/// The configuration of a run that goes on with some of its machines.
config::LoadedConfig for_machines(config::ConfigRequest request, const launch::ReducedWorld& reduced) {
  const std::pair<const char*, int> sizes[] = {{"num_processes", reduced.num_processes},
                                               {"num_machines", reduced.num_machines},
                                               {"machine_rank", reduced.machine_rank},
                                               {"launch.local_processes", reduced.local_processes},
                                               {"launch.min_machines", 1}};
  for (const auto& [path, number] : sizes) {
    const std::string value = std::to_string(number);
    request.flags.push_back(config::settings_from_flag(
        path, value, fmt::format("going on with {} machines", reduced.num_machines)));
  }
  return config::load_config(request);
}

/// Throws if there is no path to which --discard-later could roll the run back.
void require_path_to_resume(const config::LoadedConfig& loaded, bool runs_program) {
  if (runs_program)
    throw Error(ErrorKind::kUsage,
                "--discard-later is about the checkpoints of a training, not of a program");
  const std::string& resume = loaded.config.training->checkpoint.resume;
  if (resume != "auto" && resume != "none") return;
  throw Error(ErrorKind::kUsage,
              fmt::format("--discard-later needs the path of a checkpoint in training.checkpoint.resume, "
                          "which is '{}'",
                          resume))
      .hint("--set training.checkpoint.resume=OUTPUT_DIR/checkpoints/checkpoint_N");
}

/// What is drawn below the output of the ranks: what `accel watch` draws.
launch::StatusSource status_of(const std::filesystem::path& output_dir) {
  struct Drawn {
    MetricsFollower follower;
    std::pair<std::int64_t, std::size_t> of;  ///< The step and the width of `lines`.
    std::vector<std::string> lines;
  };
  const auto drawn = std::make_shared<Drawn>(Drawn{MetricsFollower(output_dir), {}, {}});
  return [drawn](std::int64_t step, std::size_t columns) {
    const bool has_news = drawn->follower.read();
    if (!has_news && drawn->of == std::pair(step, columns)) return drawn->lines;
    drawn->of = {step, columns};
    drawn->lines = status_lines(drawn->follower.history(), columns, static_cast<double>(step - 1));
    for (std::string& line : drawn->lines) line = visible(line);
    return drawn->lines;
  };
}

ExitCode run_launch(const LaunchOptions& options, const Globals& globals) {
  const bool runs_program = !globals.program.empty();
  config::ConfigRequest request = options.flags.request(options.words.configuration("launch", runs_program));
  request.runs_program = runs_program;
  // The file is read once: a run that goes on with fewer machines must not take over what has changed in it.
  if (!request.file.empty()) request.text = config::read_config_file(request.file);
  launch::LaunchRequest launch;
  launch.loaded = config::load_config(request);
  launch.resolve = [request](const launch::ReducedWorld& reduced) { return for_machines(request, reduced); };
  if (options.discards_later) require_path_to_resume(launch.loaded, request.runs_program);
  launch.discards_later = options.discards_later;
  require_script(globals.program);
  launch.signals = globals.signals;
  launch.program = globals.program;
  launch.version = fmt::format("{} ({})", kBuildInfo.version, kBuildInfo.commit);
  launch.writes_events = globals.json;
  launch.hides_output = globals.quiet;
  if (!runs_program && !globals.json && !globals.quiet && !options.without_progress) {
    launch.status = [output_dir = launch.loaded.config.training->output_dir] {
      return status_of(output_dir);
    };
  }
  for (const std::string& warning : launch.loaded.warnings) log::warn(warning);
  if (const auto data = check_training(launch.loaded)) {
    for (const std::string& text : data->warnings) log::warn(text);
  }
  return launch::launch(std::move(launch), environment_variable);
}

}  // namespace

void add_launch(CommandLine& line) {
  Command command = line.add(
      "launch", "Train the model that a YAML file describes, or run any program, on many ranks",
      "\naccel launch [CONFIG.yaml] [flags] [--] PROGRAM [ARGS] runs any program in the same way, with "
      "torchrun's environment. PROGRAM is a Python script *.py, or an executable file; in front of any "
      "other name stands \"--\".\n");
  const auto options = std::make_shared<LaunchOptions>();
  options->words.add_to(command);
  options->flags.add_to(command);
  command.flag("--discard-later", options->discards_later,
               "Roll a run back to checkpoint.resume: its later checkpoints are renamed");
  command.flag("--no-progress", options->without_progress,
               "Draw nothing below the output of the ranks on a terminal");
  command.does([options](const Globals& globals) { return run_launch(*options, globals); });
}

}  // namespace accel::cli
