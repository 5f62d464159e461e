#include "core/config/keys/keys.hpp"

namespace accel::config {
namespace {

constexpr Key not_checked(std::string_view path) { return {.path = path, .type = Type::kAny}; }

/// A key that a program gets as a variable.
constexpr Key only_passed(std::string_view path, Type type, std::string_view variable,
                          const char* passed = nullptr) {
  return {.path = path, .type = type, .variable = variable, .passed = passed, .traits = kOnlyPassed};
}

/// A key of fp8_config for a backend that accel does not have. A program gets it.
constexpr Key of_other_backend(std::string_view path, std::string_view flag, std::string_view help,
                               std::string_view variable, const char* passed) {
  Key key = only_passed(path, Type::kScalar, variable, passed);
  key.flag = flag;
  key.help = help;
  key.standard = passed;
  return key;
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

    // Transformer Engine and MS-AMP, the other backends of fp8_config.
    of_other_backend("fp8_config.amax_compute_algo", "--fp8-amax-compute-algo ALGORITHM",
                     "For a program with Transformer Engine: how scales follow from past values",
                     "ACCELERATE_FP8_AMAX_COMPUTE_ALGO", "most_recent"),
    of_other_backend("fp8_config.amax_history_len", "--fp8-amax-history-len STEPS",
                     "For a program with Transformer Engine: how many past values it keeps",
                     "ACCELERATE_FP8_AMAX_HISTORY_LEN", "1024"),
    of_other_backend("fp8_config.format", "--fp8-format FORMAT",
                     "For a program with Transformer Engine: HYBRID, E4M3 or E5M2", "ACCELERATE_FP8_FORMAT",
                     "HYBRID"),
    of_other_backend("fp8_config.interval", "--fp8-interval STEPS",
                     "For a program with Transformer Engine: steps between two scales",
                     "ACCELERATE_FP8_INTERVAL", "1"),
    of_other_backend("fp8_config.margin", "--fp8-margin BITS",
                     "For a program with Transformer Engine: the margin of the scales",
                     "ACCELERATE_FP8_MARGIN", "0"),
    of_other_backend("fp8_config.opt_level", "--fp8-opt-level LEVEL", "For a program with MS-AMP: O1 or O2",
                     "ACCELERATE_FP8_OPT_LEVEL", "O2"),
    {.path = "fp8_config.override_linear_precision",
     .type = Type::kStrings,
     .help = "For a program with Transformer Engine: whether forward, the gradients of inputs and those of "
             "weights keep a higher precision",
     .standard = "false,false,false",
     .flag = "--fp8-override-linear-precision LIST"},
    of_other_backend("fp8_config.use_autocast_during_eval", "--fp8-use-autocast-during-eval",
                     "For a program with Transformer Engine: evaluate in float8, too",
                     "ACCELERATE_FP8_USE_AUTOCAST_DURING_EVAL", "False"),
    only_passed("fp8_config.use_mxfp8_block_scaling", Type::kBool, "ACCELERATE_FP8_USE_MXFP8_BLOCK_SCALING"),
    // `accelerate config` writes these, and nothing reads them.
    only_passed("fp8_config.amax_compute_algorithm", Type::kScalar, "ACCELERATE_FP8_AMAX_COMPUTE_ALGORITHM"),
    only_passed("fp8_config.amax_history_length", Type::kScalar, "ACCELERATE_FP8_AMAX_HISTORY_LENGTH"),
    only_passed("fp8_config.optimization_level", Type::kScalar, "ACCELERATE_FP8_OPTIMIZATION_LEVEL"),
};

}  // namespace

std::span<const Key> foreign_keys() { return kForeignKeys; }

}  // namespace accel::config
