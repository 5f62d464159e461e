#include "core/config/schema/schema.hpp"

namespace accel::config {
namespace {

constexpr std::string_view kNoContextParallelism = "context parallelism is not supported yet";
constexpr std::string_view kNoSequenceParallelism = "sequence parallelism is not supported yet";

constexpr Field kAccelerateFields[] = {
    {.path = "compute_environment",
     .choices = "LOCAL_MACHINE|AMAZON_SAGEMAKER",
     .built = "LOCAL_MACHINE",
     .reader = Reader::kLauncher,
     .system = "SageMaker"},
    {.path = "distributed_type",
     .choices =
         "NO|MULTI_CPU|MULTI_GPU|FSDP|DEEPSPEED|MEGATRON_LM|XLA|TPU|MULTI_XPU|MULTI_NPU|MULTI_MLU|MULTI_SDAA|"
         "MULTI_MUSA|MULTI_HPU|MULTI_NEURON|DATA_PARALLEL|MODEL_PARALLEL",
     .built = "NO|MULTI_CPU|MULTI_GPU|FSDP",
     .reader = Reader::kLauncher,
     .system = "DEEPSPEED=DeepSpeed|MEGATRON_LM=Megatron-LM|XLA=TPUs|TPU=TPUs|MULTI_XPU=Intel GPUs|"
               "MULTI_NPU=Ascend NPUs|MULTI_MLU=Cambricon MLUs|MULTI_SDAA=SDAA devices|"
               "MULTI_MUSA=Moore Threads GPUs|MULTI_HPU=Gaudi accelerators|MULTI_NEURON=AWS Neuron devices|"
               "DATA_PARALLEL=SageMaker|MODEL_PARALLEL=SageMaker"},
    {.path = "mixed_precision", .choices = "no|fp16|bf16|fp8", .built = "no|fp16|bf16"},
    {.path = "fp16", .type = Type::kBool},
    {.path = "use_cpu", .type = Type::kBool, .reader = Reader::kLauncher},
    {.path = "debug", .type = Type::kBool, .no_effect = "only programs that use Accelerate read it"},
    {.path = "num_processes", .type = Type::kInt, .reader = Reader::kLauncher, .min = -1, .max = 1e6},
    {.path = "machine_rank", .type = Type::kInt, .reader = Reader::kLauncher, .min = 0, .max = 1e6},
    {.path = "num_machines", .type = Type::kInt, .reader = Reader::kLauncher, .min = 1, .max = 1e6},
    {.path = "gpu_ids", .type = Type::kStrings, .reader = Reader::kLauncher},
    {.path = "main_process_ip", .reader = Reader::kLauncher},
    {.path = "main_process_port", .type = Type::kInt, .reader = Reader::kLauncher, .min = 0, .below = 65536},
    {.path = "rdzv_backend",
     .choices = "static|c10d|etcd|etcd-v2",
     .built = "static",
     .reader = Reader::kLauncher,
     .system = "torch's elastic rendezvous"},
    {.path = "same_network", .type = Type::kBool, .no_effect = "machines find each other by main_process_ip"},
    {.path = "main_training_function", .no_effect = "only Accelerate's launcher for TPUs calls a function"},
    {.path = "enable_cpu_affinity", .type = Type::kBool, .reader = Reader::kLauncher},

    // The prefix fsdp_ is optional.
    {.path = "fsdp_config.version", .type = Type::kInt, .choices = "1|2"},
    // resolve/fsdp.cpp checks the next two, because their values depend on the version.
    {.path = "fsdp_config.sharding_strategy", .type = Type::kScalar},
    {.path = "fsdp_config.reshard_after_forward", .type = Type::kScalar},
    {.path = "fsdp_config.offload_params", .type = Type::kBool},
    {.path = "fsdp_config.auto_wrap_policy", .choices = "TRANSFORMER_BASED_WRAP|SIZE_BASED_WRAP|NO_WRAP"},
    {.path = "fsdp_config.transformer_layer_cls_to_wrap", .type = Type::kStrings},
    {.path = "fsdp_config.min_num_params", .type = Type::kInt, .min = 0},
    {.path = "fsdp_config.backward_prefetch", .choices = "BACKWARD_PRE|BACKWARD_POST|NO_PREFETCH"},
    {.path = "fsdp_config.forward_prefetch", .type = Type::kBool},
    {.path = "fsdp_config.state_dict_type", .choices = "FULL_STATE_DICT|SHARDED_STATE_DICT|LOCAL_STATE_DICT"},
    {.path = "fsdp_config.use_orig_params",
     .type = Type::kBool,
     .no_effect = "the original parameters are always used"},
    {.path = "fsdp_config.cpu_ram_efficient_loading",
     .type = Type::kBool,
     .no_effect = "a rank never reads more than its own shard"},
    {.path = "fsdp_config.sync_module_states",
     .type = Type::kBool,
     .no_effect = "all ranks always begin with the same values"},
    {.path = "fsdp_config.activation_checkpointing", .type = Type::kBool},
    {.path = "fsdp_config.activation_checkpointing_offload", .type = Type::kBool},
    {.path = "fsdp_config.reduce_dtype", .choices = "fp32|bf16|fp16"},
    {.path = "fsdp_config.ignored_modules"},

    {.path = "parallelism_config.dp_replicate_size", .type = Type::kInt, .min = 1},
    {.path = "parallelism_config.dp_shard_size", .type = Type::kInt, .min = 1},
    {.path = "parallelism_config.tp_size", .type = Type::kInt, .built = "1", .min = 1},
    {.path = "parallelism_config.cp_size", .type = Type::kInt, .built = "1", .min = 1},
    {.path = "parallelism_config.sp_size", .type = Type::kInt, .built = "1", .min = 1},
    {.path = "parallelism_config.cp_backend", .choices = "torch", .no_effect = kNoContextParallelism},
    {.path = "parallelism_config.cp_comm_strategy",
     .choices = "allgather|alltoall",
     .no_effect = kNoContextParallelism},
    {.path = "parallelism_config.sp_backend", .choices = "deepspeed", .no_effect = kNoSequenceParallelism},
    // Accelerate writes a string.
    {.path = "parallelism_config.sp_seq_length", .type = Type::kScalar, .no_effect = kNoSequenceParallelism},
    {.path = "parallelism_config.sp_seq_length_is_variable",
     .type = Type::kBool,
     .no_effect = kNoSequenceParallelism},
    {.path = "parallelism_config.sp_attn_implementation", .no_effect = kNoSequenceParallelism},

    // These are keys of accel alone.
    {.path = "launch.max_restarts", .type = Type::kInt, .reader = Reader::kLauncher, .min = 0, .max = 1e6},
    {.path = "launch.monitor_interval", .type = Type::kNumber, .reader = Reader::kLauncher, .above = 0},
    {.path = "launch.local_processes", .type = Type::kInt, .reader = Reader::kLauncher, .min = 1, .max = 1e6},
    {.path = "launch.rendezvous_timeout",
     .type = Type::kNumber,
     .reader = Reader::kLauncher,
     .min = 1,
     .max = 1e6},
    {.path = "launch.run_id", .reader = Reader::kLauncher},
    {.path = "launch.store_port", .type = Type::kInt, .reader = Reader::kLauncher, .min = 1, .max = 65535},
    {.path = "launch.min_machines", .type = Type::kInt, .reader = Reader::kLauncher, .min = 1, .max = 1e6},
    {.path = "launch.last_call_timeout",
     .type = Type::kNumber,
     .reader = Reader::kLauncher,
     .min = 0,
     .max = 1e6},
    {.path = "launch.heartbeat_timeout",
     .type = Type::kNumber,
     .reader = Reader::kLauncher,
     .min = 1,
     .max = 1e6},
    {.path = "launch.lock_timeout", .type = Type::kNumber, .reader = Reader::kLauncher, .min = 1, .max = 1e6},
    {.path = "launch.grace_period", .type = Type::kNumber, .reader = Reader::kLauncher, .min = 0, .max = 1e9},
    {.path = "launch.timeout", .type = Type::kNumber, .min = 1, .max = 1e6},
    {.path = "launch.log_dir", .reader = Reader::kLauncher},
    {.path = "launch.log_max_size", .type = Type::kScalar, .reader = Reader::kLauncher},
    {.path = "launch.log_files", .type = Type::kInt, .reader = Reader::kLauncher, .min = 1, .max = 1000},
    {.path = "launch.tee", .type = Type::kScalar, .reader = Reader::kLauncher},
    {.path = "launch.hang_timeout", .type = Type::kNumber, .reader = Reader::kLauncher, .min = 0, .max = 1e9},
    {.path = "launch.backend", .choices = "auto|nccl|gloo|shm"},
    {.path = "launch.worker"},
};

}  // namespace

std::span<const Field> accelerate_fields() { return kAccelerateFields; }

}  // namespace accel::config
