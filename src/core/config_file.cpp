#include "core/config_file.hpp"

#include <fmt/format.h>

#include "base/error.hpp"
#include "base/file.hpp"
#include "core/config_resolve.hpp"
#include "core/config_yaml.hpp"

namespace accel::core {
namespace {

constexpr std::uint64_t kLargestConfigBytes = 16'000'000;

Settings read_file(const std::filesystem::path& file) {
  std::string text;
  try {
    text = read_text_file(file, kLargestConfigBytes);
  } catch (const Error& error) {
    throw Error(ErrorKind::kUsage, fmt::format("configuration: {}", error.message()));
  }
  return settings_from_yaml(parse_yaml(text, {Origin::Layer::kFile, file.string()}));
}

std::string mixed_precision_of(const Settings& settings) {
  if (const auto precision = settings.get<std::string>("mixed_precision")) return *precision;
  return settings.get<bool>("fp16").value_or(false) ? "fp16" : "no";
}

}  // namespace

LoadedConfig load_config(const ConfigRequest& request) {
  LoadedConfig loaded;
  Settings& settings = loaded.settings;
  for (auto flag = request.flags.rbegin(); flag != request.flags.rend(); ++flag) settings.add_below(*flag);
  if (!request.file.empty()) settings.add_below(read_file(request.file));
  const bool has_training = settings.has("training");
  settings.add_below(settings_from_environment(request.environment));

  if (!request.runs_program && !has_training) {
    throw Error(ErrorKind::kUsage,
                fmt::format("{}: there is no 'training' section, so there is nothing to train",
                            request.file.string()))
        .hint("add one, or run a program of your own: accel launch CONFIG.yaml -- PROGRAM");
  }
  check_built(settings, request.runs_program ? Reader::kLauncher : Reader::kEngine);

  Config& config = loaded.config;
  config.mixed_precision = mixed_precision_of(settings);
  config.launch = resolve_launch(settings, request);
  config.distributed_type = resolve_distributed_type(settings, request, config.launch);
  if (!request.runs_program) {
    config.fsdp = resolve_fsdp(settings, loaded.warnings);
    // The GPU comes to a gather that begins with its unit only when it has computed all before. torch, whose
    // gathers have a stream of their own in front of which the host runs ahead, does not wait for being
    // asked.
    config.fsdp.forward_prefetch |= !config.launch.use_cpu;
    resolve_mesh(config, settings, loaded.warnings);
    config.fsdp.precision = resolve_precision(config, settings);
    config.training = resolve_training(settings, request);
    validate_training(config, settings, request);
  }
  return loaded;
}

}  // namespace accel::core
