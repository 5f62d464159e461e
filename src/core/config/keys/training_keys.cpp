#include <limits>

#include "core/config/keys/data_keys.hpp"
#include "core/config/keys/float8_keys.hpp"
#include "core/config/keys/keys.hpp"
#include "core/config/keys/optimizer_keys.hpp"
#include "data/formats/data_formats.hpp"

namespace accel::config {
namespace {

template <auto... Members>
constexpr config::Member training = member<&Config::training, Members...>;
template <auto... Members>
constexpr config::Member model = training<&TrainingConfig::model, Members...>;
template <auto Member>
constexpr config::Member scaler = training<&TrainingConfig::grad_scaler, Member>;
template <auto... Members>
constexpr config::Member ddp = training<&TrainingConfig::ddp, Members...>;
template <auto Member>
constexpr config::Member power_sgd = ddp<&DdpConfig::power_sgd, Member>;
template <auto Member>
constexpr config::Member checkpoint = training<&TrainingConfig::checkpoint, Member>;

constexpr Idle kNoCheckpoints = {
    "there are no checkpoints without 'training.checkpoint.every' or 'every_minutes'",
    [](const Config& config) { return !config.training->checkpoint.enabled(); }};
constexpr Idle kNoClasses = {"the loss has no classes",
                             [](const Config& config) { return !config.training->model.has_classes(); }};
constexpr Idle kNoCrossEntropy = {"the loss is not cross_entropy", [](const Config& config) {
                                    return config.training->model.loss != "cross_entropy";
                                  }};

constexpr double kLargestFloat = std::numeric_limits<float>::max();

constexpr auto kModelKeys = std::to_array<Key>({
    {.path = "training.model.path",
     .help = "The model: a TorchScript file, or a .pt2 file of torch.export",
     .member = model<&ModelConfig::path>,
     .traits = kNoNumbers | kRequired},
    {.path = "training.model.weights",
     .help = "Where the weights come from: safetensors or a checkpoint of any kind",
     .member = model<&ModelConfig::weights>,
     .standard = "the model's own",
     .traits = kNoNumbers},
    {.path = "training.model.rename",
     .help = "Map from regular expressions to replacements, which give tensors of training.model.weights the "
             "names of the model",
     .member = model<&ModelConfig::rename>,
     .traits = kNoNumbers},
    {.path = "training.model.broadcast_from_rank0",
     .help = "Only rank 0 sees the files of the model. It reads a unit at a time and hands out the shards",
     .member = model<&ModelConfig::broadcast_from_rank0>,
     .traits = kNoNumbers},
    {.path = "training.model.init.std",
     .help = "Draws random weights of this standard deviation, the same at any number of ranks",
     .member = model<&ModelConfig::init_std>,
     .min = 0,
     .traits = kNoNumbers},
    {.path = "training.model.inputs",
     .help = "The fields of a batch that forward gets, in order",
     .member = model<&ModelConfig::inputs>},
    {.path = "training.model.loss",
     .help = "The loss of output and targets, as in torch.nn.functional, or model if forward returns it",
     .member = model<&ModelConfig::loss>,
     .choices = "cross_entropy|model|mse|l1|smooth_l1|bce_with_logits|nll"},
    {.path = "training.model.targets",
     .help = "The field of a batch that the loss compares the output with",
     .member = model<&ModelConfig::targets>},
    {.path = "training.model.ignore_index",
     .help = "A target of this value does not count",
     .member = model<&ModelConfig::ignore_index>,
     .idle = kNoClasses},
    {.path = "training.model.label_smoothing",
     .help = "With cross_entropy: as in torch.nn.CrossEntropyLoss",
     .member = model<&ModelConfig::label_smoothing>,
     .min = 0,
     .max = 1,
     .idle = kNoCrossEntropy},
    {.path = "training.model.class_weights",
     .help = "A weight for each class, as in torch.nn.CrossEntropyLoss and NLLLoss",
     .member = model<&ModelConfig::class_weights>,
     .min = 0,
     .idle = kNoClasses},
    {.path = "training.model.z_loss",
     .help = "With cross_entropy: adds so many times the mean square of the logits' logsumexp",
     .member = model<&ModelConfig::z_loss>,
     .min = 0,
     .idle = kNoCrossEntropy},
    {.path = "training.model.fused_head",
     .help =
         "Computes logits and cross_entropy some tokens at a time; auto does so where the logits are large",
     .member = model<&ModelConfig::fused_head>,
     .choices = "auto|always|never",
     .idle = kNoCrossEntropy},
    {.path = "training.model.output",
     .help = "Which output is meant if forward returns several: its number, or its name in a dict",
     .member = model<&ModelConfig::output>},
    {.path = "training.model.metrics",
     .help = "Map from names to outputs of forward, scalars that metrics.jsonl has as model_NAME",
     .member = model<&ModelConfig::metrics>,
     .traits = kNoNumbers},
    {.path = "training.model.uint8_divisor",
     .help = "forward gets fields of uint8, such as pictures, as float32 divided by this, for example 255; "
             "targets stay as they are, and so does what a .pt2 program takes as integers",
     .member = model<&ModelConfig::uint8_divisor>,
     .max = kLargestFloat,
     .above = 0,
     .idle = {"only data of the format 'tensors' have fields of uint8",
              [](const Config& config) {
                return !data_format(config.training->data.train.format).has_own_fields;
              }}},
});

constexpr auto kLoopKeys = std::to_array<Key>({
    {.path = "training.max_steps",
     .help = "Steps of the optimizer. Required without training.epochs",
     .member = training<&TrainingConfig::max_steps>,
     .min = 1,
     .standard = "those of training.epochs",
     .traits = kNoNumbers},
    {.path = "training.epochs",
     .help = "Epochs of the training data, which end the run if training.max_steps does not end it before",
     .member = training<&TrainingConfig::epochs>,
     .min = 1,
     .max = 1e9,
     .standard = "none",
     .traits = kNoNumbers},
    {.path = "training.gradient_accumulation_steps",
     .help = "Micro-batches per step",
     .member = training<&TrainingConfig::gradient_accumulation_steps>,
     .min = 1,
     .max = 1e9,
     .variable = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"},
    {.path = "training.loss_mean",
     .help = "What a step's loss is the mean of: the means of all micro-batches, as in Accelerate's loop, or "
             "all labels that count, as in transformers' Trainer",
     .member = training<&TrainingConfig::loss_mean>,
     .choices = "batches|tokens",
     .idle = kNoClasses},
    {.path = "training.sync_each_batch", .type = Type::kBool, .built = "false"},
    {.path = "training.max_grad_norm",
     .help = "Clips the gradient at this norm",
     .member = training<&TrainingConfig::max_grad_norm>,
     .above = 0},
    {.path = "training.grad_scaler.init_scale",
     .help = "With mixed_precision fp16: the scale by which the loss is multiplied before backward",
     .member = scaler<&GradScalerConfig::init_scale>,
     .min = kLeastScale,
     .max = kLargestFloat},
    {.path = "training.grad_scaler.growth_factor",
     .help = "By how much the scale grows",
     .member = scaler<&GradScalerConfig::growth_factor>,
     .max = kLargestFloat,
     .above = 1},
    {.path = "training.grad_scaler.backoff_factor",
     .help = "By how much the scale falls when a gradient overflows",
     .member = scaler<&GradScalerConfig::backoff_factor>,
     .min = kLeastScale,
     .below = 1},
    {.path = "training.grad_scaler.growth_interval",
     .help = "Steps without overflow after which the scale grows",
     .member = scaler<&GradScalerConfig::growth_interval>,
     .min = 1},

    {.path = "training.float8.recipe",
     .help =
         "With mixed_precision fp8: how the operands of a float8 linear are scaled, each as a whole or each "
         "row by itself. rowwise_with_gw_hp computes the gradients of weights in bfloat16",
     .member = training<&TrainingConfig::float8, &Float8Config::recipe>,
     .choices = "tensorwise|rowwise|rowwise_with_gw_hp",
     .idle = kNoFloat8},
    {.path = "training.float8.filter",
     .help = "With mixed_precision fp8: a linear whose name contains one of these does not become float8",
     .member = training<&TrainingConfig::float8, &Float8Config::filter>,
     .idle = kNoFloat8,
     .standard = "the first and the last linear stay as they are"},

    {.path = "training.parallel.tp_plan",
     .help =
         "Map from modules, such as layers.*.mlp.up_proj, to styles of tensor parallelism, such as colwise",
     .member = training<&TrainingConfig::parallel, &ParallelConfig::tp_plan>,
     .idle = {"'parallelism_config.tp_size' is 1",
              [](const Config& config) { return config.fsdp.tp_size == 1; }},
     .standard = "that of the model file",
     .numbers_if = [](const Config& config) { return config.fsdp.tp_size > 1; },
     .traits = kNoNumbers},

    {.path = "training.tf32",
     .help = "Whether a GPU rounds the factors of float32 matrix products and convolutions to TF32",
     .member = training<&TrainingConfig::tf32>,
     .idle = {"only GPUs have TF32",
              [](const Config& config) { return config.launch.use_cpu || config.launch.gpu_ids.empty(); }},
     .standard = "torch's, which is convolutions alone"},

    // Under the names of Accelerate's DistributedDataParallelKwargs and torch's PowerSGDState.
    {.path = "training.ddp.comm_hook",
     .help = "How gradients are compressed before the ranks average them, with MULTI_CPU and MULTI_GPU",
     .member = ddp<&DdpConfig::comm_hook>,
     .choices = "no|fp16|bf16|power_sgd|batched_power_sgd",
     .built = "no|fp16|bf16|power_sgd"},
    {.path = "training.ddp.comm_wrapper",
     .help = "Dtype in which the hook gets gradients",
     .member = ddp<&DdpConfig::comm_wrapper>,
     .choices = "no|fp16|bf16"},
    {.path = "training.ddp.comm_state_option.matrix_approximation_rank",
     .help = "With power_sgd: the rank of the two factors of a gradient",
     .member = power_sgd<&PowerSgdConfig::matrix_approximation_rank>,
     .min = 1},
    {.path = "training.ddp.comm_state_option.start_powerSGD_iter",
     .help = "With power_sgd: the gradients of so many first steps are not compressed. At least 2 unless "
             "use_error_feedback and warm_start are false",
     .member = power_sgd<&PowerSgdConfig::start_iter>,
     .min = 0},
    {.path = "training.ddp.comm_state_option.min_compression_rate",
     .help = "With power_sgd: a gradient is compressed if its factors are smaller than it by more than this",
     .member = power_sgd<&PowerSgdConfig::min_compression_rate>,
     .min = 0},
    {.path = "training.ddp.comm_state_option.use_error_feedback",
     .help = "With power_sgd: the error of a step is added to the gradient of the next",
     .member = power_sgd<&PowerSgdConfig::use_error_feedback>},
    {.path = "training.ddp.comm_state_option.warm_start",
     .help = "With power_sgd: a step starts from the factors of the step before",
     .member = power_sgd<&PowerSgdConfig::warm_start>},
    {.path = "training.ddp.comm_state_option.orthogonalization_epsilon",
     .help = "With power_sgd: a parameter whose gradient is all zero becomes NaN unless this is above 0, for "
             "example 1e-8",
     .member = power_sgd<&PowerSgdConfig::orthogonalization_epsilon>,
     .min = 0},
    {.path = "training.ddp.comm_state_option.random_seed",
     .help = "With power_sgd: the seed of the first factors",
     .member = power_sgd<&PowerSgdConfig::random_seed>,
     .min = 0,
     .below = 4'294'967'296},
    {.path = "training.ddp.comm_state_option.compression_stats_logging_frequency",
     .type = Type::kInt,
     .built = kNothing},
    {.path = "training.ddp.comm_state_option.batch_tensors_with_same_shape",
     .type = Type::kBool,
     .built = "false"},

    {.path = "training.skip_nonfinite",
     .help = "Skips a step whose loss or gradient is infinite or NaN, instead of ending the run. A hundred "
             "in a row end it",
     .member = training<&TrainingConfig::skip_nonfinite>},
    {.path = "training.eval_every",
     .help = "Evaluates every so many steps and after the last. 0: never",
     .member = training<&TrainingConfig::eval_every>,
     .min = 0,
     .numbers_if = kFollowsEvaluations,
     .traits = kNoNumbers},
    {.path = "training.best_metric",
     .help =
         "The number of an evaluation by which early_stopping and the best checkpoint go: loss, accuracy, "
         "or NAME_loss or NAME_accuracy of one of training.data.eval_sets",
     .member = training<&TrainingConfig::best_metric>,
     .idle = kNoEvaluation,
     .numbers_if = kFollowsEvaluations,
     .traits = kNoNumbers},
    {.path = "training.early_stopping.patience",
     .help = "Ends the run when so many evaluations in a row have not improved best_metric. 0: never",
     .member = training<&TrainingConfig::early_stopping, &EarlyStoppingConfig::patience>,
     .min = 0,
     .traits = kNoNumbers},
    {.path = "training.early_stopping.threshold",
     .help = "An evaluation counts as an improvement if it is better than the best by more than this",
     .member = training<&TrainingConfig::early_stopping, &EarlyStoppingConfig::threshold>,
     .min = 0,
     .idle = {"there is no early stopping without 'training.early_stopping.patience'",
              [](const Config& config) { return config.training->early_stopping.patience == 0; }},
     .traits = kNoNumbers},
    {.path = "training.log_every",
     .help = "Steps per line of the log and of metrics.jsonl",
     .member = training<&TrainingConfig::log_every>,
     .min = 1,
     .traits = kNoNumbers},
    {.path = "training.seed",
     .help = "Seed of the order of samples and of what the model draws",
     .member = training<&TrainingConfig::seed>,
     .min = 0},
    {.path = "training.output_dir",
     .help = "Directory of the run: checkpoints, metrics, logs",
     .member = training<&TrainingConfig::output_dir>,
     .standard = "runs/ and the name of the YAML file",
     .traits = kNoNumbers},

    {.path = "training.checkpoint.every",
     .type = Type::kScalar,
     .help = "Saves every so many steps and after the last, or with continuous when the last save has ended. "
             "0: no checkpoints",
     .member = checkpoint<&CheckpointConfig::every>,
     .standard = "0",
     .traits = kNoNumbers | kComputed},
    {.path = "training.checkpoint.every_minutes",
     .help = "Saves when so many minutes have passed on rank 0, beside or instead of every",
     .member = checkpoint<&CheckpointConfig::every_minutes>,
     .min = 0,
     .traits = kNoNumbers},
    {.path = "training.checkpoint.total_limit",
     .help = "How many checkpoints are kept. 0: all",
     .member = checkpoint<&CheckpointConfig::total_limit>,
     .min = 0,
     .idle = kNoCheckpoints,
     .traits = kNoNumbers},
    {.path = "training.checkpoint.keep_best",
     .help = "Keeps the checkpoint with the best training.best_metric beside those of total_limit. Each "
             "checkpoint then needs an evaluation: every is a multiple of training.eval_every",
     .member = checkpoint<&CheckpointConfig::keep_best>,
     .idle = {"all checkpoints are kept without 'training.checkpoint.total_limit'",
              [](const Config& config) { return config.training->checkpoint.total_limit == 0; }},
     .traits = kNoNumbers},
    {.path = "training.checkpoint.resume",
     .help = "What the run goes on from: auto is the newest whole checkpoint of output_dir, none begins with "
             "step 1, a path names a checkpoint",
     .member = checkpoint<&CheckpointConfig::resume>,
     .traits = kNoNumbers},
    {.path = "training.checkpoint.verify_on_resume",
     .help = "How much of a checkpoint to go on from is compared with the CRC-32s in its manifest: what the "
             "ranks read of it, all of it, or its small files alone. What ranks read of "
             "training.model.weights is compared too, unless this is none, if they have such a manifest",
     .member = checkpoint<&CheckpointConfig::verify_on_resume>,
     .choices = "auto|full|none",
     .traits = kNoNumbers},
    {.path = "training.checkpoint.verify",
     .help = "Reads each file of a checkpoint again from the disk, and compares its CRC-32 with that of the "
             "memory, before the checkpoint gets its name",
     .member = checkpoint<&CheckpointConfig::verify>,
     .idle = kNoCheckpoints,
     .traits = kNoNumbers},
    {.path = "training.checkpoint.on_failure",
     .help = "With continue a save that fails is a warning and the run goes on; the last save must succeed",
     .member = checkpoint<&CheckpointConfig::continues_on_failure>,
     .choices = "stop|continue",
     .idle = kNoCheckpoints,
     .traits = kNoNumbers},
    {.path = "training.checkpoint.async",
     .help = "Files are written while the training goes on",
     .member = checkpoint<&CheckpointConfig::asynchronous>,
     .idle = kNoCheckpoints,
     .traits = kNoNumbers},
    {.path = "training.checkpoint.host_memory",
     .type = Type::kScalar,
     .help =
         "The most memory, such as 4GB, that a rank's copies of tensors take while they are written. auto is "
         "half of its share of what the machine has available",
     .member = checkpoint<&CheckpointConfig::host_memory>,
     .idle = kNoCheckpoints,
     .standard = "auto",
     .traits = kNoNumbers | kComputed},
    {.path = "training.checkpoint.adapter_only",
     .help = "Checkpoints without the frozen parameters, with PEFT's names",
     .member = checkpoint<&CheckpointConfig::adapter_only>,
     .traits = kNoNumbers},
    {.path = "training.checkpoint.adapter_names",
     .help = "With adapter_only: what the name of each trained parameter must contain one of",
     .member = checkpoint<&CheckpointConfig::adapter_names>,
     .traits = kNoNumbers},
    {.path = "training.checkpoint.export",
     .help = "safetensors writes the weights of the last step into export in output_dir, with the "
             "config.json and the tokenizer beside training.model.weights",
     .member = checkpoint<&CheckpointConfig::exports_safetensors>,
     .choices = "none|safetensors",
     .traits = kNoNumbers},

    {.path = "training.profile.steps",
     .type = Type::kNumbers,
     .help = "Records a trace from the first to the last of these two steps, for example [5, 8]",
     .member = training<&TrainingConfig::profile>,
     .min = 1,
     .traits = kNoNumbers | kComputed},

    {.path = "training.metrics.jsonl", .type = Type::kBool, .help = "Writes metrics.jsonl", .built = "true"},
    {.path = "training.metrics.command",
     .type = Type::kStrings,
     .help = "Command with its arguments that gets each record of metrics.jsonl on its standard input",
     .member = training<&TrainingConfig::metrics_command>,
     .traits = kNoNumbers},
    {.path = "training.metrics.tensorboard",
     .help = "Writes event files for TensorBoard into tensorboard in output_dir",
     .member = training<&TrainingConfig::tensorboard>,
     .traits = kNoNumbers},
});

constexpr auto kTrainingKeys = with_types_of_members(
    concatenated(kModelKeys, kTrainData, kEvalData, kDataKeys, kOptimizerKeys, kLoopKeys));

}  // namespace

std::span<const Key> training_keys() { return kTrainingKeys; }

}  // namespace accel::config
