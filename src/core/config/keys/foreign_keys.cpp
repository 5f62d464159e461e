#include "core/config/keys/keys.hpp"

namespace accel::config {
namespace {

constexpr Key not_checked(std::string_view path) { return {.path = path, .type = Type::kAny}; }

/// A key that a program gets as a variable.
constexpr Key only_passed(std::string_view path, Type type, std::string_view variable,
                          const char* passed = nullptr) {
  return {.path = path, .type = type, .variable = variable, .passed = passed, .traits = kOnlyPassed};
}

// The keys of the top level are known by name, so that a typo among them is found. A value is checked only if
// it alone asks for its system.
constexpr Key kForeignKeys[] = {
    {.path = "tpu_use_cluster",
     .type = Type::kBool,
     .built = "false",
     .system = "TPU pods",
     .traits = kLauncher},
    {.path = "tpu_use_sudo",
     .type = Type::kBool,
     .built = "false",
     .system = "TPU pods",
     .traits = kLauncher},
    // A program that uses Accelerate gets the settings of torch.compile.
    {.path = "dynamo_backend",
     .type = Type::kScalar,
     .built = "NO|no|false",
     .system = "Python's torch.compile"},
    {.path = "dynamo_config.backend",
     .type = Type::kScalar,
     .built = "NO|no|false",
     .system = "Python's torch.compile"},
    only_passed("dynamo_config.mode", Type::kScalar, "ACCELERATE_DYNAMO_MODE", "default"),
    only_passed("dynamo_config.use_fullgraph", Type::kBool, "ACCELERATE_DYNAMO_USE_FULLGRAPH", "False"),
    only_passed("dynamo_config.use_dynamic", Type::kBool, "ACCELERATE_DYNAMO_USE_DYNAMIC", "False"),
    only_passed("dynamo_config.use_regional_compilation", Type::kBool,
                "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION", "False"),
    {.path = "mpirun_config.mpirun_hostfile", .built = "", .system = "mpirun", .traits = kLauncher},
    {.path = "mpirun_config.mpirun_ccl",
     .type = Type::kScalar,
     .built = "0",
     .system = "mpirun",
     .traits = kLauncher},
    not_checked("tpu_name"),
    not_checked("tpu_zone"),
    not_checked("tpu_vm"),
    not_checked("tpu_env"),
    not_checked("downcast_bf16"),
    not_checked("command_file"),
    not_checked("commands"),

    // SageMaker, which its compute_environment asks for.
    not_checked("ec2_instance_type"),
    not_checked("iam_role_name"),
    not_checked("image_uri"),
    not_checked("profile"),
    not_checked("region"),
    not_checked("base_job_name"),
    not_checked("pytorch_version"),
    not_checked("transformers_version"),
    not_checked("py_version"),
    not_checked("sagemaker_inputs_file"),
    not_checked("sagemaker_metrics_file"),
    not_checked("additional_args"),

    // DeepSpeed and Megatron-LM, which their distributed_type asks for. Nobody looks into these sections, so
    // a key that is not known there is no error.
    not_checked("deepspeed_config"),
    not_checked("megatron_lm_config"),

    // Intel's extension, for which Accelerate had a section until version 1.10.
    {.path = "ipex_config.ipex",
     .type = Type::kBool,
     .built = "false",
     .system = "Intel's extension for PyTorch",
     .traits = kLauncher},
    {.path = "ipex_config.use_xpu",
     .type = Type::kBool,
     .built = "false",
     .system = "Intel GPUs",
     .traits = kLauncher},

    // Transformer Engine and MS-AMP, the other backends of fp8_config, and keys that `accelerate config`
    // writes and nothing reads. A program gets them.
    only_passed("fp8_config.amax_compute_algo", Type::kScalar, "ACCELERATE_FP8_AMAX_COMPUTE_ALGO",
                "most_recent"),
    only_passed("fp8_config.amax_compute_algorithm", Type::kScalar, "ACCELERATE_FP8_AMAX_COMPUTE_ALGORITHM"),
    only_passed("fp8_config.amax_history_len", Type::kScalar, "ACCELERATE_FP8_AMAX_HISTORY_LEN", "1024"),
    only_passed("fp8_config.amax_history_length", Type::kScalar, "ACCELERATE_FP8_AMAX_HISTORY_LENGTH"),
    only_passed("fp8_config.format", Type::kScalar, "ACCELERATE_FP8_FORMAT", "HYBRID"),
    only_passed("fp8_config.interval", Type::kScalar, "ACCELERATE_FP8_INTERVAL", "1"),
    only_passed("fp8_config.margin", Type::kScalar, "ACCELERATE_FP8_MARGIN", "0"),
    only_passed("fp8_config.opt_level", Type::kScalar, "ACCELERATE_FP8_OPT_LEVEL", "O2"),
    only_passed("fp8_config.optimization_level", Type::kScalar, "ACCELERATE_FP8_OPTIMIZATION_LEVEL"),
    {.path = "fp8_config.override_linear_precision", .type = Type::kStrings},
    only_passed("fp8_config.use_autocast_during_eval", Type::kScalar,
                "ACCELERATE_FP8_USE_AUTOCAST_DURING_EVAL", "False"),
};

}  // namespace

std::span<const Key> foreign_keys() { return kForeignKeys; }

}  // namespace accel::config
