#include "core/config/resolve/no_effect.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string_view>

#include "core/config/accelerate_variables.hpp"
#include "core/config/names.hpp"
#include "core/config/resolve/resolve.hpp"
#include "core/config/schema/schema.hpp"

namespace accel::config {
namespace {

/// A key that has no effect on some trainings.
struct Condition {
  std::string_view path;
  std::string_view why;
  bool (*applies)(const LoadedConfig&);
};

bool runs_on_cpu(const LoadedConfig& loaded) { return loaded.config.launch.use_cpu; }

bool has_no_checkpoints(const LoadedConfig& loaded) { return !loaded.config.training->checkpoint.enabled(); }

bool has_constant_rate(const LoadedConfig& loaded) {
  return loaded.config.training->lr_scheduler.type == "constant";
}

constexpr std::string_view kOnHost = "on the CPU everything is in the memory of the host";
constexpr std::string_view kNoCheckpoints =
    "there are no checkpoints without 'training.checkpoint.every' or 'every_minutes'";
constexpr std::string_view kConstant = "'training.lr_scheduler.type' is constant";

constexpr auto kConditions = std::to_array<Condition>({
    {"gpu_ids", "the run is on the CPU", runs_on_cpu},
    {"fsdp_config.offload_params", kOnHost, runs_on_cpu},
    {"fsdp_config.activation_checkpointing_offload", kOnHost, runs_on_cpu},
    {"fsdp_config.min_num_params", "'fsdp_config.auto_wrap_policy' is not SIZE_BASED_WRAP",
     [](const LoadedConfig& loaded) { return loaded.config.fsdp.auto_wrap_policy != WrapPolicy::kSize; }},
    {"fsdp_config.transformer_layer_cls_to_wrap",
     "'fsdp_config.auto_wrap_policy' is not TRANSFORMER_BASED_WRAP",
     [](const LoadedConfig& loaded) {
       return loaded.config.fsdp.auto_wrap_policy != WrapPolicy::kTransformer;
     }},
    {"training.data.eval.path", "there is no evaluation without 'training.eval_every'",
     [](const LoadedConfig& loaded) { return loaded.config.training->eval_every == 0; }},
    {"training.data.check_labels", "only data of the format 'tensors' bring labels of their own",
     [](const LoadedConfig& loaded) { return loaded.config.training->data.train.format != "tensors"; }},
    {"training.lr_scheduler.warmup_steps", kConstant, has_constant_rate},
    {"training.lr_scheduler.total_steps", kConstant, has_constant_rate},
    {"training.checkpoint.total_limit", kNoCheckpoints, has_no_checkpoints},
    {"training.checkpoint.verify", kNoCheckpoints, has_no_checkpoints},
    {"training.checkpoint.on_failure", kNoCheckpoints, has_no_checkpoints},
    {"training.checkpoint.async", kNoCheckpoints, has_no_checkpoints},
    {"training.checkpoint.host_memory", kNoCheckpoints, has_no_checkpoints},
});

bool is_passed(std::string_view path, std::span<const AccelerateVariable> variables) {
  return std::any_of(variables.begin(), variables.end(),
                     [&](const AccelerateVariable& variable) { return variable.path == path; });
}

/// Why the key has no effect on a program of the user; empty if it has one.
std::string_view without_effect_on_program(const Field& field, const LoadedConfig& loaded) {
  // The older form of mixed_precision.
  if (field.reader == Reader::kLauncher || field.path == "fp16") return {};
  if (is_below(field.path, "training")) return "a program runs instead of a training";
  if (is_below(field.path, "fsdp_config") && loaded.config.distributed_type != DistributedType::kFsdp)
    return "'distributed_type' is not FSDP, so that the program does not get it";
  if (is_passed(field.path, kGeneralVariables) || is_passed(field.path, kFsdpVariables) ||
      is_passed(field.path, kParallelismVariables))
    return {};
  return field.no_effect.empty() ? "it is for a training, and a program runs" : field.no_effect;
}

/// Why the key has no effect on this training; empty if it has one.
std::string_view without_effect_on_training(const Field& field, const LoadedConfig& loaded) {
  const bool is_always_on = std::find(kAlwaysOn.begin(), kAlwaysOn.end(), field.path) != kAlwaysOn.end();
  if (is_always_on && loaded.settings.get<bool>(field.path) == false) return {};  // load_config() warns.
  if (!field.no_effect.empty()) return field.no_effect;
  // load_config() warns of the whole section.
  const DistributedType type = loaded.config.distributed_type;
  const bool replicates = type == DistributedType::kMultiCpu || type == DistributedType::kMultiGpu;
  if (replicates && is_below(field.path, "fsdp_config")) return {};
  // What is off anyway needs no condition.
  if (loaded.settings.get<bool>(field.path) == false) return {};
  for (const Condition& condition : kConditions) {
    if (condition.path == field.path && condition.applies(loaded)) return condition.why;
  }
  return {};
}

/// Why a key of another system has no effect; empty if a program of the user gets it.
std::string_view without_effect_as_foreign(const Field& field, const LoadedConfig& loaded) {
  const bool runs_program = !loaded.config.training.has_value();
  if (runs_program && (field.path == "dynamo_backend" || is_below(field.path, "dynamo_config"))) return {};
  if (runs_program && is_below(field.path, "fp8_config"))
    return loaded.config.mixed_precision == "fp8" ? "" : "'mixed_precision' is not fp8";
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
  for (const auto table : {accelerate_fields(), training_fields()}) {
    for (const Field& field : table) {
      add(field.path, loaded.config.training ? without_effect_on_training(field, loaded)
                                             : without_effect_on_program(field, loaded));
    }
  }
  for (const Field& field : foreign_fields()) add(field.path, without_effect_as_foreign(field, loaded));
  if (settings.get<std::string>("rdzv_backend").value_or("static") != "static")
    add("rdzv_backend", "one machine needs no rendezvous");
  return found;
}

}  // namespace accel::config
