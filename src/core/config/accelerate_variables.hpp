#pragma once

#include <array>

namespace accel::config {

/// An environment variable by which Accelerate passes a value of its configuration to a script.
struct AccelerateVariable {
  const char* name;
  const char* path;  ///< The key of the configuration.
  /// What `accelerate launch` passes if nobody sets the key, the default of its flag; nullptr: nothing.
  const char* otherwise = nullptr;
  bool is_read = true;  ///< Accelerate reads it as a setting. The other variables are only passed on.
};

/// These are only read; the launcher derives what it passes from the resolved configuration.
inline constexpr auto kGeneralVariables = std::to_array<AccelerateVariable>({
    {"ACCELERATE_MIXED_PRECISION", "mixed_precision"},
    {"ACCELERATE_USE_CPU", "use_cpu"},
    {"ACCELERATE_DEBUG_MODE", "debug"},
    {"ACCELERATE_CPU_AFFINITY", "enable_cpu_affinity"},
    {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "training.gradient_accumulation_steps"},
});

/// These are passed to a script if the distributed type is FSDP.
inline constexpr auto kFsdpVariables = std::to_array<AccelerateVariable>({
    {"FSDP_VERSION", "fsdp_config.version", "1"},
    {"FSDP_SHARDING_STRATEGY", "fsdp_config.sharding_strategy", "FULL_SHARD"},
    {"FSDP_RESHARD_AFTER_FORWARD", "fsdp_config.reshard_after_forward", "true"},
    {"FSDP_OFFLOAD_PARAMS", "fsdp_config.offload_params", "false"},
    {"FSDP_AUTO_WRAP_POLICY", "fsdp_config.auto_wrap_policy"},
    {"FSDP_TRANSFORMER_CLS_TO_WRAP", "fsdp_config.transformer_layer_cls_to_wrap"},
    {"FSDP_MIN_NUM_PARAMS", "fsdp_config.min_num_params", "100000000"},
    {"FSDP_BACKWARD_PREFETCH", "fsdp_config.backward_prefetch"},
    {"FSDP_FORWARD_PREFETCH", "fsdp_config.forward_prefetch", "false"},
    {"FSDP_STATE_DICT_TYPE", "fsdp_config.state_dict_type"},
    {"FSDP_USE_ORIG_PARAMS", "fsdp_config.use_orig_params", "true"},
    {"FSDP_CPU_RAM_EFFICIENT_LOADING", "fsdp_config.cpu_ram_efficient_loading", "true"},
    {"FSDP_SYNC_MODULE_STATES", "fsdp_config.sync_module_states", "true"},
    {"FSDP_ACTIVATION_CHECKPOINTING", "fsdp_config.activation_checkpointing", "false"},
    {"FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD", "fsdp_config.activation_checkpointing_offload", "false"},
    {"FSDP_IGNORED_MODULES", "fsdp_config.ignored_modules"},
});

/// These are passed to a script if mixed_precision is fp8. The three below are added to them.
inline constexpr auto kFp8Variables = std::to_array<AccelerateVariable>({
    {"ACCELERATE_FP8_BACKEND", "fp8_config.backend", nullptr, false},
    {"ACCELERATE_FP8_USE_AUTOCAST_DURING_EVAL", "fp8_config.use_autocast_during_eval", "False", false},
    {"ACCELERATE_FP8_MARGIN", "fp8_config.margin", "0", false},
    {"ACCELERATE_FP8_INTERVAL", "fp8_config.interval", "1", false},
    {"ACCELERATE_FP8_FORMAT", "fp8_config.format", "HYBRID", false},
    {"ACCELERATE_FP8_AMAX_HISTORY_LEN", "fp8_config.amax_history_len", "1024", false},
    {"ACCELERATE_FP8_AMAX_HISTORY_LENGTH", "fp8_config.amax_history_length", nullptr, false},
    {"ACCELERATE_FP8_AMAX_COMPUTE_ALGO", "fp8_config.amax_compute_algo", "most_recent", false},
    {"ACCELERATE_FP8_AMAX_COMPUTE_ALGORITHM", "fp8_config.amax_compute_algorithm", nullptr, false},
    {"ACCELERATE_FP8_OPT_LEVEL", "fp8_config.opt_level", "O2", false},
    {"ACCELERATE_FP8_OPTIMIZATION_LEVEL", "fp8_config.optimization_level", nullptr, false},
    {"ACCELERATE_FP8_ENABLE_FSDP_FLOAT8_ALL_GATHER", "fp8_config.enable_fsdp_float8_all_gather", "1", false},
    {"ACCELERATE_FP8_PAD_INNER_DIM", "fp8_config.pad_inner_dim", "1", false},
});

/// These are passed to a script beside ACCELERATE_DYNAMO_BACKEND.
inline constexpr auto kDynamoVariables = std::to_array<AccelerateVariable>({
    {"ACCELERATE_DYNAMO_MODE", "dynamo_config.mode", "default", false},
    {"ACCELERATE_DYNAMO_USE_FULLGRAPH", "dynamo_config.use_fullgraph", "False", false},
    {"ACCELERATE_DYNAMO_USE_DYNAMIC", "dynamo_config.use_dynamic", "False", false},
    {"ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION", "dynamo_config.use_regional_compilation", "False", false},
});

/// The variables of fp8_config.override_linear_precision, a list of three.
inline constexpr auto kFp8Overrides = std::to_array<const char*>(
    {"ACCELERATE_FP8_OVERRIDE_FPROP", "ACCELERATE_FP8_OVERRIDE_DGRAD", "ACCELERATE_FP8_OVERRIDE_WGRAD"});

/// Accelerate reads the variables below only if this one is "true".
inline constexpr const char* kUseParallelism = "ACCELERATE_USE_PARALLELISM_CONFIG";

/// These are passed to a script if there is a section parallelism_config.
inline constexpr auto kParallelismVariables = std::to_array<AccelerateVariable>({
    {"PARALLELISM_CONFIG_DP_REPLICATE_SIZE", "parallelism_config.dp_replicate_size", "1"},
    {"PARALLELISM_CONFIG_DP_SHARD_SIZE", "parallelism_config.dp_shard_size", "1"},
    {"PARALLELISM_CONFIG_TP_SIZE", "parallelism_config.tp_size", "1"},
    {"PARALLELISM_CONFIG_CP_SIZE", "parallelism_config.cp_size", "1"},
    {"PARALLELISM_CONFIG_SP_SIZE", "parallelism_config.sp_size", "1"},
    {"PARALLELISM_CONFIG_CP_BACKEND", "parallelism_config.cp_backend", "torch", false},
    {"PARALLELISM_CONFIG_CP_COMM_STRATEGY", "parallelism_config.cp_comm_strategy", nullptr, false},
    {"PARALLELISM_CONFIG_SP_BACKEND", "parallelism_config.sp_backend", "deepspeed", false},
    {"PARALLELISM_CONFIG_SP_SEQ_LENGTH", "parallelism_config.sp_seq_length", nullptr, false},
    {"PARALLELISM_CONFIG_SP_SEQ_LENGTH_IS_VARIABLE", "parallelism_config.sp_seq_length_is_variable", nullptr,
     false},
    {"PARALLELISM_CONFIG_SP_ATTN_IMPLEMENTATION", "parallelism_config.sp_attn_implementation", nullptr,
     false},
});

}  // namespace accel::config
