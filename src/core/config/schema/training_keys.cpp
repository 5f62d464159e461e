#include <limits>

#include "core/config/config.hpp"
#include "core/config/schema/schema.hpp"

namespace accel::config {
namespace {

constexpr Field kTrainingFields[] = {
    {.path = "training.model.path"},
    {.path = "training.model.weights"},
    {.path = "training.model.rename", .type = Type::kTexts},
    {.path = "training.model.broadcast_from_rank0", .type = Type::kBool},
    {.path = "training.model.init.std", .type = Type::kNumber, .min = 0},
    {.path = "training.model.inputs", .type = Type::kStrings},
    {.path = "training.model.loss",
     .choices = "cross_entropy|model|mse|l1|smooth_l1|bce_with_logits|nll",
     .built = "cross_entropy|model"},
    {.path = "training.model.targets"},
    {.path = "training.model.output"},

    {.path = "training.data.train.format",
     .choices = "text|tokens|tensors|synthetic",
     .built = "text|tokens|tensors"},
    {.path = "training.data.train.path"},
    {.path = "training.data.train.sequence_length", .type = Type::kInt, .min = 1},
    {.path = "training.data.train.dtype", .choices = "uint16|uint32"},
    {.path = "training.data.eval.format",
     .choices = "text|tokens|tensors|synthetic",
     .built = "text|tokens|tensors"},
    {.path = "training.data.eval.path"},
    {.path = "training.data.eval.sequence_length", .type = Type::kInt, .min = 1},
    {.path = "training.data.eval.dtype", .choices = "uint16|uint32"},
    {.path = "training.data.batch_size", .type = Type::kInt, .min = 1, .max = 1e9},
    {.path = "training.data.shuffle", .type = Type::kBool},
    {.path = "training.data.drop_last", .type = Type::kBool},
    {.path = "training.data.check_labels", .type = Type::kBool},
    {.path = "training.data.workers", .type = Type::kInt, .built = "1", .min = 0},

    {.path = "training.optimizer.type", .choices = "adamw|adam|sgd|adagrad", .built = "adamw"},
    {.path = "training.optimizer.lr", .type = Type::kNumber, .min = 0},
    {.path = "training.optimizer.betas", .type = Type::kNumbers, .min = 0, .below = 1},
    {.path = "training.optimizer.eps", .type = Type::kNumber, .min = 0},
    {.path = "training.optimizer.weight_decay", .type = Type::kNumber, .min = 0},
    {.path = "training.optimizer.no_decay", .type = Type::kStrings},
    {.path = "training.optimizer.momentum", .type = Type::kNumber, .built = kNothing, .min = 0},
    {.path = "training.optimizer.nesterov", .type = Type::kBool, .built = "false"},

    {.path = "training.lr_scheduler.type",
     .choices = "constant|constant_with_warmup|linear|cosine|cosine_with_restarts|polynomial|inverse_sqrt",
     .built = "constant|constant_with_warmup|linear|cosine"},
    {.path = "training.lr_scheduler.warmup_steps", .type = Type::kInt, .min = 0},
    {.path = "training.lr_scheduler.min_lr_ratio", .type = Type::kNumber, .min = 0, .below = 1},
    {.path = "training.lr_scheduler.total_steps", .type = Type::kInt, .min = 0},

    {.path = "training.max_steps", .type = Type::kInt, .min = 1},
    {.path = "training.epochs", .type = Type::kInt, .built = kNothing, .min = 1},
    {.path = "training.gradient_accumulation_steps", .type = Type::kInt, .min = 1},
    {.path = "training.sync_each_batch", .type = Type::kBool, .built = "false"},
    {.path = "training.max_grad_norm", .type = Type::kNumber, .above = 0},
    {.path = "training.grad_scaler.init_scale",
     .type = Type::kNumber,
     .min = kLeastScale,
     .max = std::numeric_limits<float>::max()},
    {.path = "training.grad_scaler.growth_factor",
     .type = Type::kNumber,
     .max = std::numeric_limits<float>::max(),
     .above = 1},
    {.path = "training.grad_scaler.backoff_factor", .type = Type::kNumber, .min = kLeastScale, .below = 1},
    {.path = "training.grad_scaler.growth_interval", .type = Type::kInt, .min = 1},
    // Under the names of Accelerate's DistributedDataParallelKwargs and torch's PowerSGDState.
    {.path = "training.ddp.comm_hook",
     .choices = "no|fp16|bf16|power_sgd|batched_power_sgd",
     .built = "no|fp16|bf16|power_sgd"},
    {.path = "training.ddp.comm_wrapper", .choices = "no|fp16|bf16"},
    {.path = "training.ddp.comm_state_option.matrix_approximation_rank", .type = Type::kInt, .min = 1},
    {.path = "training.ddp.comm_state_option.start_powerSGD_iter", .type = Type::kInt, .min = 0},
    {.path = "training.ddp.comm_state_option.min_compression_rate", .type = Type::kNumber, .min = 0},
    {.path = "training.ddp.comm_state_option.use_error_feedback", .type = Type::kBool},
    {.path = "training.ddp.comm_state_option.warm_start", .type = Type::kBool},
    {.path = "training.ddp.comm_state_option.orthogonalization_epsilon", .type = Type::kNumber, .min = 0},
    {.path = "training.ddp.comm_state_option.random_seed",
     .type = Type::kInt,
     .min = 0,
     .below = 4'294'967'296},
    {.path = "training.ddp.comm_state_option.compression_stats_logging_frequency",
     .type = Type::kInt,
     .built = kNothing},
    {.path = "training.ddp.comm_state_option.batch_tensors_with_same_shape",
     .type = Type::kBool,
     .built = "false"},
    {.path = "training.skip_nonfinite", .type = Type::kBool},
    {.path = "training.eval_every", .type = Type::kInt, .min = 0},
    {.path = "training.log_every", .type = Type::kInt, .min = 1},
    {.path = "training.seed", .type = Type::kInt, .min = 0},
    {.path = "training.output_dir"},

    {.path = "training.checkpoint.every", .type = Type::kScalar},
    {.path = "training.checkpoint.every_minutes", .type = Type::kNumber, .min = 0},
    {.path = "training.checkpoint.total_limit", .type = Type::kInt, .min = 0},
    {.path = "training.checkpoint.resume"},
    {.path = "training.checkpoint.verify_on_resume", .choices = "auto|full|none"},
    {.path = "training.checkpoint.verify", .type = Type::kBool},
    {.path = "training.checkpoint.on_failure", .choices = "stop|continue"},
    {.path = "training.checkpoint.async", .type = Type::kBool},
    {.path = "training.checkpoint.host_memory", .type = Type::kScalar},
    {.path = "training.checkpoint.adapter_only", .type = Type::kBool},
    {.path = "training.checkpoint.adapter_names", .type = Type::kStrings},
    {.path = "training.checkpoint.export", .choices = "none|safetensors"},

    {.path = "training.profile.steps", .type = Type::kNumbers, .min = 1},

    {.path = "training.metrics.jsonl", .type = Type::kBool, .built = "true"},
    {.path = "training.metrics.tensorboard", .type = Type::kBool, .built = "false"},
};

}  // namespace

std::span<const Field> training_fields() { return kTrainingFields; }

}  // namespace accel::config
