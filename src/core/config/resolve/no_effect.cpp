#include "core/config/resolve/no_effect.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "core/config/keys/keys.hpp"
#include "core/config/resolve/resolve.hpp"

namespace accel::config {
namespace {

/// Why a key of fp8_config has no effect on a program of the user; empty if the program gets it.
std::string_view without_effect_of_fp8(const LoadedConfig& loaded) {
  return loaded.config.has_float8() ? "" : "'mixed_precision' is not fp8";
}

/// Why the key has no effect on a program of the user; empty if it has one.
std::string_view without_effect_on_program(const Key& key, const LoadedConfig& loaded) {
  // The older form of mixed_precision.
  if (key.has(kLauncher) || key.path == "fp16") return {};
  if (key.path == "dynamo_backend") return {};  // The program gets it under its present name.
  if (is_below(key.path, "training")) return "a program runs instead of a training";
  if (is_below(key.path, "fsdp_config") && loaded.config.distributed_type != DistributedType::kFsdp)
    return "'distributed_type' is not FSDP, so that the program does not get it";
  if (is_below(key.path, "fp8_config")) return without_effect_of_fp8(loaded);
  if (!key.variable.empty()) return {};
  return key.no_effect.empty() ? "it is for a training, and a program runs" : key.no_effect;
}

/// Why the key has no effect on this training; empty if it has one.
std::string_view without_effect_on_training(const Key& key, const LoadedConfig& loaded) {
  const bool is_always_on = std::find(kAlwaysOn.begin(), kAlwaysOn.end(), key.path) != kAlwaysOn.end();
  if (is_always_on && loaded.settings.get<bool>(key.path) == false) return {};  // load_config() warns.
  if (!key.no_effect.empty()) return key.no_effect;
  // load_config() warns of the whole section.
  const DistributedType type = loaded.config.distributed_type;
  const bool replicates = type == DistributedType::kMultiCpu || type == DistributedType::kMultiGpu;
  if (replicates && is_below(key.path, "fsdp_config")) return {};
  // What is off anyway needs no condition.
  if (loaded.settings.get<bool>(key.path) == false) return {};
  return key.idle.applies != nullptr && key.idle.applies(loaded.config) ? key.idle.why : "";
}

/// Why a key of another system has no effect; empty if a program of the user gets it.
std::string_view without_effect_as_foreign(const Key& key, const LoadedConfig& loaded) {
  const bool runs_program = !loaded.config.training.has_value();
  if (runs_program && is_below(key.path, "fp8_config")) return without_effect_of_fp8(loaded);
  return "it is for a system that accel does not have";
}

}  // namespace

std::vector<std::string> settings_without_effect(const LoadedConfig& loaded) {
  const Settings& settings = loaded.settings;
  std::vector<std::string> found;
  const auto add = [&](std::string_view path, std::string_view why) {
    if (why.empty() || !settings.has(path)) return;
    found.push_back(fmt::format("{}'{}' has no effect: {}", settings.where(path), path, why));
  };
  for (const auto table : {run_keys(), training_keys()}) {
    for (const Key& key : table) {
      add(key.path, loaded.config.training ? without_effect_on_training(key, loaded)
                                           : without_effect_on_program(key, loaded));
    }
  }
  for (const Key& key : foreign_keys()) add(key.path, without_effect_as_foreign(key, loaded));
  if (settings.get<std::string>("rdzv_backend").value_or("static") != "static")
    add("rdzv_backend", "one machine needs no rendezvous");
  return found;
}

}  // namespace accel::config
