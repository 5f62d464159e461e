#include "core/config/resolve/load_config.hpp"

#include <fmt/format.h>

#include "base/error.hpp"
#include "base/files/stream.hpp"
#include "core/config/resolve/members.hpp"
#include "core/config/resolve/resolve.hpp"
#include "core/config/settings/scheduler.hpp"
#include "core/config/settings/settings.hpp"
#include "core/config/settings/yaml.hpp"

namespace accel::config {
namespace {

constexpr std::uint64_t kLargestConfigBytes = 1'000'000;

/// Sets `mixed_precision` from `fp16`, its older form in Accelerate's files, within one layer. So it hides
/// the `mixed_precision` of the layers below.
void translate_fp16(Settings& layer) {
  static constexpr std::string_view kPrecision = "mixed_precision";
  const auto fp16 = layer.get<bool>("fp16");
  if (!fp16) return;
  const auto precision = layer.get<std::string>(kPrecision);
  if (!precision) {
    layer.set(std::string(kPrecision), {std::string(*fp16 ? "fp16" : "no"), layer.find("fp16")->origin});
  } else if ((*precision == "fp16") != *fp16) {
    throw Error(ErrorKind::kUsage, fmt::format("{}'fp16: {}' contradicts '{}: {}'", layer.where("fp16"),
                                               *fp16, kPrecision, *precision))
        .hint("keep one of the two");
  }
}

/// The settings of the file. `above` are those that win over them.
Settings settings_of_file(const ConfigRequest& request, const Settings& above) {
  const std::string text = request.text ? *request.text : read_config_file(request.file);
  const YamlNode root = parse_yaml(text, {Origin::Layer::kFile, request.file.string()});
  // That accel does not have a system says more than that a key of it is unknown.
  Settings systems = above;
  systems.add_below(systems_from_yaml(root));
  check_built(systems, true);
  Settings settings = settings_from_yaml(root);
  translate_fp16(settings);
  return settings;
}

bool has_several_machines(Settings flags, const Settings& file, const Environment& environment) {
  flags.add_below(file);
  flags.add_below(settings_from_environment(environment, flags));
  return flags.get<std::int64_t>("num_machines").value_or(1) > 1;
}

[[noreturn]] void fail_without_training(const ConfigRequest& request) {
  Error error(ErrorKind::kUsage, fmt::format("{}: there is no 'training' section, so there is nothing to {}",
                                             request.file.string(), request.only_plans ? "plan" : "train"));
  if (request.only_plans) throw std::move(error).hint("add one: the plan is that of a training");
  throw std::move(error).hint(fmt::format(
      "add one, or name a program of your own: accel {} CONFIG.yaml -- PROGRAM", request.command));
}

}  // namespace

std::string read_config_file(const std::filesystem::path& file) {
  try {
    return read_text_stream(file, kLargestConfigBytes);
  } catch (const Error& error) {
    if (is_by_signal(error.kind())) throw;
    throw Error(ErrorKind::kUsage, fmt::format("configuration: {}", error.message()));
  }
}

LoadedConfig load_config(const ConfigRequest& request) {
  LoadedConfig loaded;
  Settings& settings = loaded.settings;
  for (auto flag = request.flags.rbegin(); flag != request.flags.rend(); ++flag) settings.add_below(*flag);
  translate_fp16(settings);
  // A file that all machines share cannot say which of them this is, and Accelerate writes num_machines: 1
  // into every file. The scheduler knows.
  SchedulerSettings scheduler;
  const auto machines = settings.get<std::int64_t>("num_machines");
  if (!request.only_plans && machines != 1) scheduler = settings_from_scheduler(request.environment);
  if (!machines) settings.add_below(scheduler.machines);
  Settings file;
  if (!request.file.empty()) file = settings_of_file(request, settings);
  if (has_several_machines(settings, file, request.environment)) settings.add_below(scheduler.index);
  settings.add_below(file);
  settings.add_below(scheduler.address);
  const bool has_training = settings.has("training");
  settings.add_below(settings_from_environment(request.environment, settings));

  if (!request.runs_program && !has_training) fail_without_training(request);
  check_built(settings, request.runs_program);

  Config& config = loaded.config;
  if (!request.runs_program) {
    config.training.emplace();
    if (settings.has("training.data.eval")) config.training->data.eval.emplace();
  }
  set_members(run_keys(), settings, request.file, config);
  if (request.runs_program) config.fsdp = {};  // The engine alone reads it.
  resolve_launch(config.launch, settings, request);
  config.distributed_type = resolve_distributed_type(settings, request, config.launch);
  warn_of_launch(config, settings, request, loaded.warnings);
  if (!request.runs_program) {
    resolve_fsdp(config.fsdp, settings, loaded.warnings);
    // On a GPU a gather that begins with its unit starts only when all previous work is done. torch gathers
    // ahead without being asked: its gathers have a stream of their own, and the host runs ahead of it.
    config.fsdp.forward_prefetch |= !config.launch.use_cpu;
    resolve_mesh(config, settings, loaded.warnings);
    resolve_float8(config, settings, request, loaded.warnings);
    config.fsdp.precision = resolve_precision(config, settings);
    resolve_training(config, settings, request);
    resolve_compile(config, settings);
    resolve_ddp(config, settings, request, loaded.warnings);
    validate_training(config, settings, request);
    validate_tensor_parallel(config, settings);
    warn_of_training(*config.training, settings, loaded.warnings);
  }
  return loaded;
}

}  // namespace accel::config
