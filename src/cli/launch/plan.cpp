#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "cli/launch/launch_flags.hpp"
#include "cli/launch/plan_report.hpp"
#include "cli/line/commands.hpp"
#include "core/config/resolve/load_config.hpp"
#include "core/config/settings/settings.hpp"
#include "import/open_model.hpp"
#include "plan/model_plan.hpp"
#include "plan/parameter_groups.hpp"

namespace accel::cli {
namespace {

struct PlanOptions {
  std::string config;
  std::optional<std::string> world_sizes;
  LaunchFlags flags;
};

// Resolves one configuration per world size, because the world size decides what is allowed and what follows.
std::vector<config::LoadedConfig> load_all(const PlanOptions& options) {
  config::ConfigRequest request = options.flags.request(options.config);
  request.only_plans = true;
  std::vector<config::LoadedConfig> loaded;
  if (!options.world_sizes) {
    loaded.push_back(config::load_config(request));
    return loaded;
  }
  for (const std::string& word : split(*options.world_sizes, ',')) {
    config::ConfigRequest of_size = request;
    const std::string size(trim(word));
    of_size.flags.push_back(config::settings_from_flag("num_processes", size, "--world-size " + size));
    loaded.push_back(config::load_config(of_size));
  }
  if (loaded.empty())
    throw Error(ErrorKind::kUsage, "--world-size needs a number, or several separated by commas");
  return loaded;
}

ExitCode run_plan(const PlanOptions& options, const Globals& globals) {
  const std::vector<config::LoadedConfig> loaded = load_all(options);
  const config::Config& config = loaded.front().config;
  for (const std::string& warning : loaded.front().warnings) log::warn(warning);
  const ArchiveModel model = open_model(config.training->model.path).archive;
  const ModelPlan plan = plan_model(model, config);
  for (const std::string& warning : plan.warnings) log::warn(warning);
  if (const std::string text = muon_warning(plan.structure, plan.optimizer); !text.empty()) log::warn(text);
  std::vector<Footprint> footprints;
  footprints.reserve(loaded.size());
  for (const config::LoadedConfig& one : loaded)
    footprints.push_back(footprint_of(model, plan_model(model, one.config), one.config));
  const PlanReport report{options.config, config, plan, footprints};
  globals.json ? print_plan_json(report, *globals.out) : print_plan_text(report, *globals.out);
  return ExitCode::kSuccess;
}

}  // namespace

void add_plan(CommandLine& line) {
  Command command = line.add("plan", "Show units, memory per rank and traffic per step before anything runs",
                             "\nThe other flags are those of launch. Put `plan` in place of `launch` to see "
                             "what a run would take.\n");
  const auto options = std::make_shared<PlanOptions>();
  command.positional("config", options->config, "The configuration", Command::Need::kRequired, "CONFIG.yaml");
  command.text("--world-size", "N,...", options->world_sizes,
               "Plan for N ranks; several numbers are separated by commas");
  options->flags.add_to(command);
  command.does([options](const Globals& globals) { return run_plan(*options, globals); });
}

}  // namespace accel::cli
