#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/log.hpp"
#include "cli/commands.hpp"
#include "core/config_file.hpp"
#include "core/launch/launch.hpp"
#include "core/launch/machine.hpp"

namespace accel::cli {
namespace {

/// A flag that sets one value of the configuration.
struct ValueFlag {
  const char* name;
  const char* path;
  const char* type;
  const char* help;
};

constexpr ValueFlag kValueFlags[] = {
    {"--num-processes", "num_processes", "N", "Ranks in all; default: one per visible GPU, else 1"},
    {"--mixed-precision", "mixed_precision", "MODE", "no, fp16 or bf16"},
    {"--main-process-ip", "main_process_ip", "IP", "Address of rank 0"},
    {"--main-process-port", "main_process_port", "PORT", "Port of rank 0's store; 0: a free one (29500)"},
    {"--gpu-ids", "gpu_ids", "LIST", "GPUs to use: all, or numbers with commas"},
    {"--num-machines", "num_machines", "N", "Machines in all (1)"},
    {"--machine-rank", "machine_rank", "N", "This machine's number (0)"},
    {"--log-dir", "launch.log_dir", "DIR", "Folder for the ranks' output"},
    {"--tee", "launch.tee", "RANKS", "Ranks whose output is shown"},
    {"--max-restarts", "launch.max_restarts", "N", "Restarts of the whole group after a failure (0)"},
    {"--monitor-interval", "launch.monitor_interval", "SECONDS",
     "Accepted; workers are watched without polling"},
};

struct Options {
  std::string first;  ///< CONFIG.yaml
  std::array<std::optional<std::string>, std::size(kValueFlags)> values;
  std::vector<std::string> assignments;
  bool cpu = false;
};

std::optional<std::string> variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

/// The flags as settings; a later one wins, so a flag with a name of its own wins over --set.
std::vector<core::Settings> settings_of(const Options& options) {
  std::vector<core::Settings> settings;
  for (const std::string& assignment : options.assignments) {
    settings.push_back(core::settings_from_assignment(assignment));
  }
  for (std::size_t i = 0; i < std::size(kValueFlags); ++i) {
    const std::optional<std::string>& value = options.values[i];
    if (!value) continue;
    const std::string shown = fmt::format("{} {}", kValueFlags[i].name, *value);
    settings.push_back(core::settings_from_flag(kValueFlags[i].path, *value, shown));
  }
  if (options.cpu) settings.push_back(core::settings_from_flag("use_cpu", "true", "--cpu"));
  return settings;
}

ExitCode run_launch(const Options& options, const Globals& globals) {
  core::ConfigRequest request;
  request.file = options.first;
  request.runs_program = !globals.program.empty();
  request.environment = variable;
  request.visible_gpus = core::visible_gpus(variable);
  request.flags = settings_of(options);
  if (options.first.empty() && !request.runs_program) {
    throw Error(ErrorKind::kUsage, "launch needs a configuration file")
        .hint("accel launch CONFIG.yaml, or accel launch --num-processes 2 -- PROGRAM");
  }
  core::LaunchRequest launch{core::load_config(request), globals.program};
  for (const std::string& warning : launch.loaded.warnings) log::warn(warning);
  return core::launch(std::move(launch), variable);
}

}  // namespace

void add_launch(CommandLine& line) {
  Command command = line.add(
      "launch", "Train the model that a YAML file describes, or run any program, on many ranks",
      "\naccel launch [CONFIG.yaml] [flags] -- PROGRAM [ARGS] runs any program in the same way, with "
      "torchrun's environment.\n");
  const auto options = std::make_shared<Options>();
  command.positional("config", options->first, "The configuration", Command::Need::kOptional, "CONFIG.yaml");
  command.texts("--set", "KEY=VALUE", options->assignments,
                "Set any value of the configuration; may be repeated");
  for (std::size_t i = 0; i < std::size(kValueFlags); ++i) {
    const ValueFlag& flag = kValueFlags[i];
    command.text(flag.name, flag.type, options->values[i], flag.help);
  }
  command.flag("--cpu,--use-cpu", options->cpu, "Run on the CPU");
  command.does([options](const Globals& globals) { return run_launch(*options, globals); });
}

}  // namespace accel::cli
