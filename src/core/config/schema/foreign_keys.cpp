#include "core/config/schema/schema.hpp"

namespace accel::config {
namespace {

// The keys of the top level are known by name, so that a typo among them is found. A value is checked only if
// it alone asks for its system.
constexpr Field kForeignFields[] = {
    {.path = "tpu_use_cluster",
     .type = Type::kBool,
     .built = "false",
     .reader = Reader::kLauncher,
     .system = "TPU pods"},
    {.path = "tpu_use_sudo",
     .type = Type::kBool,
     .built = "false",
     .reader = Reader::kLauncher,
     .system = "TPU pods"},
    // A program that uses Accelerate gets the settings of torch.compile.
    {.path = "dynamo_backend",
     .type = Type::kScalar,
     .built = "NO|no|false",
     .system = "Python's torch.compile"},
    {.path = "dynamo_config.backend",
     .type = Type::kScalar,
     .built = "NO|no|false",
     .system = "Python's torch.compile"},
    {.path = "dynamo_config.mode", .type = Type::kScalar},
    {.path = "dynamo_config.use_fullgraph", .type = Type::kBool},
    {.path = "dynamo_config.use_dynamic", .type = Type::kBool},
    {.path = "dynamo_config.use_regional_compilation", .type = Type::kBool},
    {.path = "mpirun_config.mpirun_hostfile", .built = "", .reader = Reader::kLauncher, .system = "mpirun"},
    {.path = "mpirun_config.mpirun_ccl",
     .type = Type::kScalar,
     .built = "0",
     .reader = Reader::kLauncher,
     .system = "mpirun"},
    {.path = "tpu_name", .type = Type::kAny},
    {.path = "tpu_zone", .type = Type::kAny},
    {.path = "tpu_vm", .type = Type::kAny},
    {.path = "tpu_env", .type = Type::kAny},
    {.path = "downcast_bf16", .type = Type::kAny},
    {.path = "command_file", .type = Type::kAny},
    {.path = "commands", .type = Type::kAny},

    // SageMaker, which its compute_environment asks for.
    {.path = "ec2_instance_type", .type = Type::kAny},
    {.path = "iam_role_name", .type = Type::kAny},
    {.path = "image_uri", .type = Type::kAny},
    {.path = "profile", .type = Type::kAny},
    {.path = "region", .type = Type::kAny},
    {.path = "base_job_name", .type = Type::kAny},
    {.path = "pytorch_version", .type = Type::kAny},
    {.path = "transformers_version", .type = Type::kAny},
    {.path = "py_version", .type = Type::kAny},
    {.path = "sagemaker_inputs_file", .type = Type::kAny},
    {.path = "sagemaker_metrics_file", .type = Type::kAny},
    {.path = "additional_args", .type = Type::kAny},

    // DeepSpeed and Megatron-LM, which their distributed_type asks for. Nobody looks into these sections, so
    // a key that is not known there is no error.
    {.path = "deepspeed_config", .type = Type::kAny},
    {.path = "megatron_lm_config", .type = Type::kAny},

    // Intel's extension, for which Accelerate had a section until version 1.10.
    {.path = "ipex_config.ipex",
     .type = Type::kBool,
     .built = "false",
     .reader = Reader::kLauncher,
     .system = "Intel's extension for PyTorch"},
    {.path = "ipex_config.use_xpu",
     .type = Type::kBool,
     .built = "false",
     .reader = Reader::kLauncher,
     .system = "Intel GPUs"},

    // FP8, which mixed_precision fp8 asks for. A program gets them.
    {.path = "fp8_config.amax_compute_algo", .type = Type::kScalar},
    {.path = "fp8_config.amax_compute_algorithm", .type = Type::kScalar},
    {.path = "fp8_config.amax_history_len", .type = Type::kScalar},
    {.path = "fp8_config.amax_history_length", .type = Type::kScalar},
    {.path = "fp8_config.backend", .type = Type::kScalar},
    {.path = "fp8_config.enable_fsdp_float8_all_gather", .type = Type::kScalar},
    {.path = "fp8_config.format", .type = Type::kScalar},
    {.path = "fp8_config.interval", .type = Type::kScalar},
    {.path = "fp8_config.margin", .type = Type::kScalar},
    {.path = "fp8_config.opt_level", .type = Type::kScalar},
    {.path = "fp8_config.optimization_level", .type = Type::kScalar},
    {.path = "fp8_config.override_linear_precision", .type = Type::kStrings},
    {.path = "fp8_config.pad_inner_dim", .type = Type::kScalar},
    {.path = "fp8_config.use_autocast_during_eval", .type = Type::kScalar},
};

}  // namespace

std::span<const Field> foreign_fields() { return kForeignFields; }

}  // namespace accel::config
