#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/config/optimizers.hpp"

namespace accel::config {

/// The resolved configuration: every value is set, and none contradicts another. The launcher makes it from
/// YAML, flags and environment (resolve/load_config.hpp); a worker reads it from `config.resolved.json`.

enum class DistributedType { kNo, kMultiCpu, kMultiGpu, kFsdp };
enum class WrapPolicy { kTransformer, kSize, kNone };
/// kAuto is NCCL on GPUs. On CPUs it is kShm, memory that the ranks share, if all are on one machine, else
/// Gloo. kFake is for measurements of one rank (train/c10d/fake_backend.hpp): no setting gives it, but
/// config.resolved.json may have it.
enum class Backend { kAuto, kNccl, kGloo, kShm, kFake };
/// The communication hook of DistributedDataParallel, which may compress gradients for the all-reduce.
enum class CommHookType { kNo, kFp16, kBf16, kPowerSgd };
/// How the operands of a float8 linear are scaled: torchao's recipes of float8 training.
enum class Float8Recipe { kTensorwise, kRowwise, kRowwiseWithGwHp };

/// Names of torch's dtypes; an empty one is the dtype without mixed precision. The shard, its gradient and
/// the optimizer state are always float32.
struct PrecisionConfig {
  std::string param_dtype;   ///< The dtype of unsharded parameters, in both versions of FSDP.
  std::string reduce_dtype;  ///< The dtype of gradients in the reduce-scatter.
  std::string io_dtype;      ///< The dtype of the units' floating inputs and outputs, in version 2.
  std::string buffer_dtype;  ///< The dtype of the model's floating buffers and inputs, in version 1.
  /// The dtype of autocast, under which forward runs, with float32 outputs, in version 1 and where nothing is
  /// sharded.
  std::string autocast_dtype;

  [[nodiscard]] bool is_float16() const { return param_dtype == "float16" || autocast_dtype == "float16"; }
};

struct FsdpConfig {
  int version = 1;
  /// Copies of the model; each is sharded over num_processes / (replicate_size * tp_size) ranks.
  int replicate_size = 1;
  /// So many ranks train on the same batches, each on a part of the sequences. They are shards, too.
  int sequence_size = 1;
  int tp_size = 1;  ///< Ranks among which tensor parallelism cuts parameters.
  bool reshard_after_forward = true;
  /// How many ranks a unit is sharded over between forward and backward; 0: as many as in forward.
  int reshard_size = 0;
  bool forward_prefetch = true;           ///< The next units are gathered in forward while one runs.
  bool backward_prefetch = true;          ///< The previous units are gathered in backward while one runs.
  int prefetch_depth = 1;                 ///< So many units are gathered ahead at most.
  bool activation_checkpointing = false;  ///< The wrapped modules are recomputed in backward.
  bool activation_offload = false;        ///< The host's memory holds what checkpointing saves for backward.
  bool offload_params = false;  ///< The host's memory holds shards, their gradients and the optimizer state.
  WrapPolicy auto_wrap_policy = WrapPolicy::kNone;
  std::int64_t min_num_params = 100'000'000;  ///< The least elements of a unit, for SIZE_BASED_WRAP.
  std::vector<std::string> transformer_layer_cls_to_wrap;
  /// The place where the classes are set, for errors: "gpt.yaml:3:5: 'KEY'".
  std::string wrap_origin = "'fsdp_config.transformer_layer_cls_to_wrap'";
  std::string ignored_modules;  ///< A regular expression on module names; empty for none.
  std::string ignored_origin = "'fsdp_config.ignored_modules'";  ///< The place of the setting, for errors.
  PrecisionConfig precision;
};

/// A pattern (NamePattern) for names of tensors, and what takes the place of its matches.
struct Rename {
  std::string pattern;
  std::string replacement;
};

/// A scalar that forward returns.
struct NamedOutput {
  std::string name;    ///< Its name in the records of the run, without the prefix "model_".
  std::string output;  ///< The index or the name of the output.
};

struct ModelConfig {
  std::filesystem::path path;     ///< A TorchScript file.
  std::filesystem::path weights;  ///< Any checkpoint; empty for the file's own weights.
  std::vector<Rename> rename;     ///< Gives tensors of `weights` the names of the model, in this order.
  /// Only rank 0 sees these files. It reads them and sends the others what they need.
  bool broadcast_from_rank0 = false;
  std::optional<double> init_std;                   ///< The weights are random, with this standard deviation.
  std::vector<std::string> inputs = {"input_ids"};  ///< The batch fields passed to forward, in order.
  /// A name in the table of train/loop/loss.cpp, or "model": forward returns the loss.
  std::string loss = "cross_entropy";
  std::string targets = "labels";     ///< The batch field that the loss compares the output with.
  std::string output = "0";           ///< The index or the name of the output, if forward returns several.
  std::vector<NamedOutput> metrics;   ///< Scalars that the run records.
  std::int64_t ignore_index = -100;   ///< A target of this value does not count.
  double label_smoothing = 0;         ///< That of torch.nn.CrossEntropyLoss.
  std::vector<double> class_weights;  ///< The weight of each class; empty if all are equal.
  double z_loss = 0;                  ///< The factor of the mean square of the logits' logsumexp.
  /// Whether cross_entropy takes the model's last linear along and goes through both some tokens at a time:
  /// "auto" (where the logits would be large), "always" or "never".
  std::string fused_head = "auto";
  std::optional<double> uint8_divisor;  ///< forward gets fields of uint8 as float32 divided by this.
  /// Whether the loss compares the output with numbers of classes.
  [[nodiscard]] bool has_classes() const { return loss == "cross_entropy" || loss == "nll"; }
  /// Whether uint8_divisor is for this field: targets are numbers of classes.
  [[nodiscard]] bool divides(const std::string& field) const { return uint8_divisor && field != targets; }
};

/// Files of a mixture, and their part of its samples before the weights are divided by their sum.
struct MixturePart {
  std::string path;  ///< A path or a glob, like DataSource::path.
  double weight = 0;
};

struct DataSource {
  std::string format;  ///< A name in the table of data/formats/data_formats.hpp.
  /// A path or a glob; matches are used in sorted order. Empty if there are no files, or a mixture of them.
  std::string path;
  std::int64_t sequence_length = 0;  ///< The number of tokens per sample; 0 if the format sets it.
  /// The dtype of tokens without a header, "uint16" or "uint32"; if empty, each file's header says it.
  std::string dtype = {};
  /// How documents become samples: "best_fit" packs whole ones, "none" pads each. Empty for other formats.
  std::string packing = {};
  std::int64_t vocabulary = 0;  ///< The number of different tokens, for a format without files.
  std::int64_t samples = 0;     ///< The number of samples, for a format without files.
  std::vector<MixturePart> mixture = {};
  /// A micro-batch of documents is as long as its longest one, rounded up to a multiple of this, and at most
  /// sequence_length. 0 for always sequence_length.
  std::int64_t pad_to_multiple_of = 0;
};

/// A set of held-out data.
struct HeldOutData {
  std::string name;  ///< Its name in DataConfig::eval_sets; empty for DataConfig::eval.
  DataSource source;
};

struct DataConfig {
  DataSource train;
  std::optional<DataSource> eval;
  /// The paths of further held-out data by name. In everything else they are as `eval`.
  std::map<std::string, std::string> eval_sets;
  std::int64_t batch_size = 1;  ///< The number of samples per process and micro-batch.
  bool shuffle = true;
  bool drop_last = true;  ///< If false, samples from the start complete the last batch.
  /// A table whose labels look wrong for the model is refused: those that are the inputs themselves, and
  /// those that the model would shift a second time.
  bool check_labels = true;

  /// `eval`, if it is there, and behind it the sets, by their names.
  [[nodiscard]] std::vector<HeldOutData> held_out() const;
};

struct OptimizerConfig {
  std::string type = "adamw";
  double lr = 1e-3;
  OptimizerOptions options;            ///< All that the optimizer has are set, and no others.
  std::vector<std::string> no_decay;   ///< Parameters whose name contains one of these get no weight decay.
  std::vector<ParameterGroup> groups;  ///< The first whose pattern a name matches has the parameter.
};

/// The options of torch.optim.lr_scheduler.ReduceLROnPlateau and of transformers' GreedyLR. Where their
/// defaults differ, a value that is not set is that of the schedule (plan/schedule/plateau.cpp).
struct PlateauConfig {
  std::optional<double> factor;
  std::int64_t patience = 10;
  std::optional<double> threshold;
  std::string threshold_mode;  ///< It is rel, abs, or empty for that of the schedule.
  std::int64_t cooldown = 0;
  std::optional<double> min_lr;
  double max_lr = 1;               ///< Only greedy has it, and the two below.
  std::int64_t warmup = 0;         ///< Evaluations after a rise of the rate that do not count.
  std::int64_t reset_start = 500;  ///< Falls at the least rate after which the schedule begins anew.
};

struct SchedulerConfig {
  std::string type = "constant";  ///< A name of transformers (plan/schedule/learning_rate.cpp).
  std::int64_t warmup_steps = 0;
  double min_lr_ratio = 0.0;              ///< The least fraction of `lr`.
  std::int64_t total_steps = 0;           ///< The number of steps; 0 stands for max_steps.
  std::optional<double> num_cycles;       ///< Without it, that of the schedule.
  double lr_end = 1e-7;                   ///< The last learning rate of polynomial.
  double power = 1;                       ///< The power of polynomial.
  std::int64_t timescale = 0;             ///< That of inverse_sqrt; 0 is the warm-up, or 10,000 without one.
  std::optional<double> warmup_lr_ratio;  ///< Where the warm-up of cosine_warmup_with_min_lr begins.
  std::int64_t decay_steps = 0;           ///< The last steps of warmup_stable_decay, in which it decays.
  std::string warmup_type = "linear";     ///< It is linear, cosine or 1-sqrt; for warmup_stable_decay.
  std::string decay_type = "cosine";      ///< It is linear, cosine or 1-sqrt; for warmup_stable_decay.
  PlateauConfig plateau;                  ///< The options of the schedules of follows_held_out_loss().

  /// Whether the learning rate depends on evaluations, and not on the step.
  [[nodiscard]] bool follows_held_out_loss() const {
    return type == "reduce_lr_on_plateau" || type == "greedy";
  }
};

/// The forms of a checkpoint, as Accelerate names them.
enum class StateDictType { kSharded, kFull, kLocal };

/// How much of a checkpoint to go on from is compared with the sums in its manifest: what the ranks read of
/// it, all of it, or its small files alone.
enum class VerifyOnResume { kAuto, kFull, kNone };

struct CheckpointConfig {
  std::int64_t every = 0;        ///< Steps between checkpoints; 0 for no such rule.
  double every_minutes = 0;      ///< Minutes between checkpoints; 0 for no such rule.
  bool continuously = false;     ///< A save begins when the last one has ended.
  std::int64_t total_limit = 0;  ///< How many checkpoints are kept; 0 for all.
  bool keep_best = false;        ///< The best by TrainingConfig::best_metric is kept beside those.
  /// It is "auto" (the newest whole checkpoint of output_dir), "none", or the path of a checkpoint.
  std::string resume = "auto";
  VerifyOnResume verify_on_resume = VerifyOnResume::kAuto;
  bool verify = false;                ///< Read each file of a checkpoint again before it gets its name.
  bool continues_on_failure = false;  ///< A save that fails is a warning, unless it is the last one.
  std::filesystem::path resume_from;  ///< What the launcher found to go on from; empty to begin.
  bool asynchronous = true;           ///< Files are written while training goes on.
  /// The most bytes that a rank's copies of tensors take while they are written; 0 for half of what its share
  /// of the machine has available.
  std::uint64_t host_memory = 0;
  StateDictType type = StateDictType::kSharded;  ///< fsdp_config.state_dict_type.
  /// Frozen parameters are not in the checkpoints. A trainable one must have a name with one of
  /// adapter_names in it, and is stored under the name that PEFT gives it in a file.
  bool adapter_only = false;
  std::vector<std::string> adapter_names = {"lora_"};
  bool exports_safetensors = false;  ///< The weights of the last step are written for transformers, too.

  /// Whether there are checkpoints. If so, the last step has one, too.
  [[nodiscard]] bool enabled() const { return every > 0 || every_minutes > 0 || continuously; }
};

/// The least scale of a loss in float16. The gradient of the loss is the scale itself, and float16 does not
/// hold it exactly below its least normal number.
inline constexpr double kLeastScale = 0x1p-14;

/// The scale by which a loss in float16 is multiplied before backward. The defaults are those of
/// torch.amp.GradScaler.
struct GradScalerConfig {
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  std::int64_t growth_interval = 2000;  ///< The number of steps between two growths.
};

/// The float8 linears of `mixed_precision: fp8`; nothing reads it with another precision.
struct Float8Config {
  Float8Recipe recipe = Float8Recipe::kTensorwise;
  /// A linear whose path contains one of these stays as it is. Empty for Accelerate's choice, which leaves
  /// the first and the last linear of the model out.
  std::vector<std::string> filter;
  /// Whether version 2 of FSDP gathers the weights of these linears in float8 (Config::gathers_float8()).
  bool gathers_float8 = true;
};

/// Accelerate's dynamo_config.
struct CompileConfig {
  /// "INDUCTOR" if layers run the code that accel-export has compiled for them; "NO" for all that compiles
  /// nothing.
  std::string backend = "NO";
  bool fullgraph = false;  ///< It is an error if the layers have no code that fits.

  [[nodiscard]] bool is_on() const { return backend == "INDUCTOR"; }
};

/// torch's PowerSGDState, with its defaults.
struct PowerSgdConfig {
  std::int64_t matrix_approximation_rank = 1;
  std::int64_t start_iter = 1000;  ///< The gradients of so many first steps are not compressed.
  /// A gradient is compressed only if its factors are smaller than it by more than this rate.
  double min_compression_rate = 2;
  bool use_error_feedback = true;  ///< The error of a step is added to the gradient of the next.
  bool warm_start = true;          ///< A step starts from the factors of the previous step.
  double orthogonalization_epsilon = 0;
  std::uint32_t random_seed = 0;
};

/// Data parallelism (MULTI_CPU and MULTI_GPU), as Accelerate's DistributedDataParallelKwargs set it.
struct DdpConfig {
  CommHookType comm_hook = CommHookType::kNo;
  /// kFp16 or kBf16: the hook gets the gradient in that dtype. Without a hook it is kNo.
  CommHookType comm_wrapper = CommHookType::kNo;
  PowerSgdConfig power_sgd;  ///< Only kPowerSgd uses it.
};

/// The steps of which a trace is recorded, both ends included.
struct ProfileConfig {
  std::int64_t first_step = 0;
  std::int64_t last_step = 0;
};

/// Those of transformers' EarlyStoppingCallback.
struct EarlyStoppingConfig {
  std::int64_t patience = 0;  ///< So many evaluations that are not better end the run; 0 for never.
  double threshold = 0;       ///< An evaluation is better if it is so by more than this.
};

/// What splits a model otherwise than FSDP.
struct ParallelConfig {
  /// Patterns for modules and their styles (plan/linears/tensor_plan.hpp); empty for those of the model file.
  std::map<std::string, std::string> tp_plan;
};

struct TrainingConfig {
  ModelConfig model;
  DataConfig data;
  OptimizerConfig optimizer;
  SchedulerConfig lr_scheduler;
  /// The last step of the run. With `epochs` it is at most the step that ends them.
  std::int64_t max_steps = 0;
  std::int64_t epochs = 0;  ///< 0 if max_steps alone ends the run.
  std::int64_t gradient_accumulation_steps = 1;
  /// What a step's loss and gradient are the mean of: "batches" (of the means of micro-batches), or "tokens"
  /// (of all labels that count, over ranks and micro-batches).
  std::string loss_mean = "batches";
  std::optional<double> max_grad_norm;
  GradScalerConfig grad_scaler;  ///< Only float16 uses it.
  Float8Config float8;
  ParallelConfig parallel;
  CompileConfig compile;
  /// Whether a GPU may round the factors of float32 products to TF32; without it, torch's default for each.
  std::optional<bool> tf32;
  DdpConfig ddp;  ///< It has all defaults without a communication hook.
  /// A step whose loss or gradient is infinite or NaN changes no weight, instead of ending the run.
  bool skip_nonfinite = false;
  std::int64_t eval_every = 0;  ///< Steps between evaluations; 0 for never. Else the last step has one, too.
  /// The number of an evaluation that early stopping and the best checkpoint look at: "loss" or "accuracy",
  /// or one of these behind the name of one of DataConfig::eval_sets and "_".
  std::string best_metric = "loss";
  EarlyStoppingConfig early_stopping;
  std::int64_t log_every = 10;
  std::uint64_t seed = 42;
  std::filesystem::path output_dir;
  CheckpointConfig checkpoint;
  std::optional<ProfileConfig> profile;
  bool only_evaluates = false;  ///< The model is evaluated on data.eval and not trained (`accel evaluate`).
  std::vector<std::string> metrics_command;  ///< Gets what metrics.jsonl has on its standard input.
  bool tensorboard = false;                  ///< What metrics.jsonl has is written for TensorBoard as well.

  /// Whether evaluations decide about the learning rate, the end of the run or the checkpoint that is kept.
  [[nodiscard]] bool follows_evaluations() const {
    return lr_scheduler.follows_held_out_loss() || early_stopping.patience > 0 || checkpoint.keep_best;
  }
};

struct LaunchConfig {
  int num_processes = 1;  ///< The world size, which counts the ranks on all machines.
  int num_machines = 1;
  int machine_rank = 0;
  int local_processes = 1;  ///< The ranks on this machine.
  std::string main_process_ip = "127.0.0.1";
  int main_process_port = 29500;      ///< The port; 0 for a free one.
  std::string run_id;                 ///< What the launchers of one run have in common; it may be empty.
  int store_port = 0;                 ///< The port of rank 0's store; 0 for a free one.
  double rendezvous_timeout_s = 300;  ///< How long the launchers of several machines wait for each other.
  int min_machines = 1;               ///< The run goes on with at least so many of its machines.
  double last_call_timeout_s = 30;    ///< How long a restart waits for machines beyond min_machines.
  double heartbeat_timeout_s = 20;    ///< A machine whose launcher is silent for so long is lost.
  double lock_timeout_s = 60;  ///< A run on another host that shows no sign of life for so long is over.
  bool use_cpu = false;
  bool preflight = true;     ///< Model, weights and data are compared before any rank starts.
  bool binds_cpus = false;   ///< Each rank runs on CPUs of its own (enable_cpu_affinity).
  std::vector<int> gpu_ids;  ///< The devices of this machine's local ranks; empty for no GPU.
  Backend backend = Backend::kAuto;
  double collective_timeout_s = 1800;  ///< How long a rank waits for the others in any operation.
  int max_restarts = 0;                ///< How often all ranks may be started again after a failure.
  /// Which streams of this machine's ranks are shown, by local rank: 0 none, 1 stdout, 2 stderr, 3 both, -1
  /// what is shown by default. Empty for the default: both of rank 0, and stderr of the others.
  std::vector<int> tee;
  double hang_timeout_s = 0;         ///< How long the ranks may make no progress; 0 for any time.
  double grace_period_s = 30;        ///< The time from SIGTERM to SIGKILL.
  std::filesystem::path log_dir;     ///< It may be empty; see log_root().
  std::uint64_t log_max_bytes = 0;   ///< The size at which a log file is rotated; 0 for never.
  int log_files = 4;                 ///< How many earlier log files of a stream stay.
  bool expandable_segments = false;  ///< torch's allocator grows its segments of GPU memory.
  std::filesystem::path worker;      ///< The accel-worker to run; empty for the installed one.
  std::filesystem::path directory;   ///< Where the launcher runs, to which relative paths are relative.
};

struct Config {
  DistributedType distributed_type = DistributedType::kNo;
  std::string mixed_precision = "no";
  FsdpConfig fsdp;
  LaunchConfig launch;
  std::optional<TrainingConfig> training;  ///< It is absent for `accel launch CONFIG -- PROGRAM`.

  /// Whether linears of the model compute in float8.
  [[nodiscard]] bool has_float8() const { return mixed_precision == "fp8"; }
  /// Whether the weights of these linears are gathered in float8, which version 2 of FSDP alone does.
  [[nodiscard]] bool gathers_float8() const {
    return has_float8() && distributed_type == DistributedType::kFsdp && fsdp.version == 2 && training &&
           training->float8.gathers_float8;
  }
};

/// The directory of the logs of the ranks; empty: no log files.
std::filesystem::path log_root(const Config& config);

}  // namespace accel::config
