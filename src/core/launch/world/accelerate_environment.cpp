#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>

#include "core/launch/world/environment.hpp"

namespace accel::core {
namespace {

struct Passed {
  const char* path;
  const char* variable;
  const char* otherwise;  ///< nullptr: left out when nobody has set it.
};

// The defaults are those of accelerate launch's flags.
constexpr std::array kFsdp = {
    Passed{"fsdp_config.version", "FSDP_VERSION", "1"},
    Passed{"fsdp_config.sharding_strategy", "FSDP_SHARDING_STRATEGY", "FULL_SHARD"},
    Passed{"fsdp_config.offload_params", "FSDP_OFFLOAD_PARAMS", "false"},
    Passed{"fsdp_config.min_num_params", "FSDP_MIN_NUM_PARAMS", "100000000"},
    Passed{"fsdp_config.auto_wrap_policy", "FSDP_AUTO_WRAP_POLICY", nullptr},
    Passed{"fsdp_config.backward_prefetch", "FSDP_BACKWARD_PREFETCH", nullptr},
    Passed{"fsdp_config.state_dict_type", "FSDP_STATE_DICT_TYPE", nullptr},
    Passed{"fsdp_config.forward_prefetch", "FSDP_FORWARD_PREFETCH", "false"},
    Passed{"fsdp_config.use_orig_params", "FSDP_USE_ORIG_PARAMS", "true"},
    Passed{"fsdp_config.cpu_ram_efficient_loading", "FSDP_CPU_RAM_EFFICIENT_LOADING", "true"},
    Passed{"fsdp_config.sync_module_states", "FSDP_SYNC_MODULE_STATES", "true"},
    Passed{"fsdp_config.activation_checkpointing", "FSDP_ACTIVATION_CHECKPOINTING", "false"},
    Passed{"fsdp_config.activation_checkpointing_offload", "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD", "false"},
    Passed{"fsdp_config.ignored_modules", "FSDP_IGNORED_MODULES", nullptr},
};

constexpr std::array kParallelism = {
    Passed{"parallelism_config.dp_replicate_size", "PARALLELISM_CONFIG_DP_REPLICATE_SIZE", "1"},
    Passed{"parallelism_config.dp_shard_size", "PARALLELISM_CONFIG_DP_SHARD_SIZE", "1"},
    Passed{"parallelism_config.tp_size", "PARALLELISM_CONFIG_TP_SIZE", "1"},
    Passed{"parallelism_config.cp_size", "PARALLELISM_CONFIG_CP_SIZE", "1"},
    Passed{"parallelism_config.cp_backend", "PARALLELISM_CONFIG_CP_BACKEND", "torch"},
    Passed{"parallelism_config.cp_comm_strategy", "PARALLELISM_CONFIG_CP_COMM_STRATEGY", nullptr},
    Passed{"parallelism_config.sp_size", "PARALLELISM_CONFIG_SP_SIZE", "1"},
    Passed{"parallelism_config.sp_backend", "PARALLELISM_CONFIG_SP_BACKEND", "deepspeed"},
    Passed{"parallelism_config.sp_seq_length", "PARALLELISM_CONFIG_SP_SEQ_LENGTH", nullptr},
    Passed{"parallelism_config.sp_seq_length_is_variable", "PARALLELISM_CONFIG_SP_SEQ_LENGTH_IS_VARIABLE",
           nullptr},
    Passed{"parallelism_config.sp_attn_implementation", "PARALLELISM_CONFIG_SP_ATTN_IMPLEMENTATION", nullptr},
};

void pass(const Settings& settings, std::span<const Passed> table, Variables& variables) {
  for (const Passed& row : table) {
    const Setting* setting = settings.find(row.path);
    if (setting != nullptr && settings.has(row.path)) {
      variables[row.variable] = text_of(setting->value);
    } else if (row.otherwise != nullptr) {
      variables[row.variable] = row.otherwise;
    }
  }
}

void pass_fsdp(const Settings& settings, Variables& variables) {
  variables["ACCELERATE_USE_FSDP"] = "true";
  pass(settings, kFsdp, variables);
  std::string reshard = settings.get<std::string>("fsdp_config.reshard_after_forward").value_or("true");
  for (char& c : reshard) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  variables["FSDP_RESHARD_AFTER_FORWARD"] = reshard;
  if (const auto classes =
          settings.get<std::vector<std::string>>("fsdp_config.transformer_layer_cls_to_wrap")) {
    variables["FSDP_TRANSFORMER_CLS_TO_WRAP"] = fmt::format("{}", fmt::join(*classes, ","));
  }
}

}  // namespace

Variables accelerate_variables(const LoadedConfig& loaded) {
  const Settings& settings = loaded.settings;
  Variables variables = {
      {"ACCELERATE_MIXED_PRECISION", loaded.config.mixed_precision},
      {"ACCELERATE_DYNAMO_BACKEND", "NO"},
      {"ACCELERATE_DYNAMO_MODE", "default"},
      {"ACCELERATE_DYNAMO_USE_FULLGRAPH", "False"},
      {"ACCELERATE_DYNAMO_USE_DYNAMIC", "False"},
      {"ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION", "False"},
  };
  const bool cpu_by_choice = settings.get<bool>("use_cpu").value_or(false) ||
                             loaded.config.distributed_type == DistributedType::kMultiCpu;
  if (cpu_by_choice) variables["ACCELERATE_USE_CPU"] = "True";
  if (settings.get<bool>("debug").value_or(false)) variables["ACCELERATE_DEBUG_MODE"] = "true";
  if (settings.get<bool>("enable_cpu_affinity").value_or(false))
    variables.emplace("ACCELERATE_CPU_AFFINITY", "1");
  if (loaded.config.distributed_type == DistributedType::kFsdp) pass_fsdp(settings, variables);
  if (settings.has("parallelism_config")) {
    variables["ACCELERATE_USE_PARALLELISM_CONFIG"] = "true";
    pass(settings, kParallelism, variables);
  }
  return variables;
}

}  // namespace accel::core
