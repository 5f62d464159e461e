#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace accel::core {

/// The resolved configuration: every value set, none contradicting another. The launcher makes it from YAML,
/// flags and environment (config_file.hpp); a worker reads it back from `config.resolved.json`.

enum class DistributedType { kNo, kMultiCpu, kMultiGpu, kFsdp };
enum class WrapPolicy { kTransformer, kSize, kNone };
/// kAuto: NCCL on GPUs; on CPUs memory that the ranks share if all are on one machine, else Gloo.
enum class Backend { kAuto, kNccl, kGloo, kShm };
/// What gradients are made into on their way through DistributedDataParallel's all-reduce.
enum class CommHookType { kNo, kFp16, kBf16, kPowerSgd };

/// Names of torch's dtypes; empty: as it is without mixed precision. The shard, its gradient and the
/// optimizer's state are float32 all the same.
struct PrecisionConfig {
  std::string param_dtype;   ///< Of the unsharded parameters, in both versions of FSDP.
  std::string reduce_dtype;  ///< Of gradients on their way through the reduce-scatter.
  std::string io_dtype;      ///< Of floating inputs and outputs of the units, in version 2.
  std::string buffer_dtype;  ///< Of the model's floating buffers and inputs, in version 1.
  /// In which forward runs under autocast, with float32 outputs: in version 1, and where nothing is sharded.
  std::string autocast_dtype;

  [[nodiscard]] bool is_float16() const { return param_dtype == "float16" || autocast_dtype == "float16"; }
};

struct FsdpConfig {
  int version = 1;
  int replicate_size =
      1;  ///< Copies of the model; each is sharded over num_processes / replicate_size ranks.
  bool reshard_after_forward = true;
  int reshard_size = 0;  ///< So many ranks keep a unit between forward and backward; 0: as many as shard it.
  bool forward_prefetch = true;           ///< Gather the next unit while one runs.
  bool backward_prefetch = true;          ///< The one before, in backward.
  bool activation_checkpointing = false;  ///< Of the wrapped modules.
  bool activation_offload = false;        ///< What these keep for backward lies in the host's memory,
  bool offload_params = false;            ///< and so do shards, their gradients and the optimizer's state.
  WrapPolicy auto_wrap_policy = WrapPolicy::kNone;
  std::int64_t min_num_params = 100'000'000;  ///< Elements; of SIZE_BASED_WRAP.
  std::vector<std::string> transformer_layer_cls_to_wrap;
  /// Who asks for these classes, for errors: "gpt.yaml:3:5: 'KEY'".
  std::string wrap_origin = "'fsdp_config.transformer_layer_cls_to_wrap'";
  std::string ignored_modules;  ///< A regular expression on module names; empty: none.
  std::string ignored_origin = "'fsdp_config.ignored_modules'";  ///< Who sets it, for errors.
  PrecisionConfig precision;
};

struct ModelConfig {
  std::filesystem::path path;     ///< A TorchScript file.
  std::filesystem::path weights;  ///< Any checkpoint; empty: the file's own.
  /// Only rank 0 sees these files: it reads them, and hands out what the others need.
  bool broadcast_from_rank0 = false;
  std::optional<double> init_std;                   ///< Random weights of this standard deviation.
  std::vector<std::string> inputs = {"input_ids"};  ///< Batch fields passed to forward, in order.
  std::string loss = "cross_entropy";               ///< Or "model": forward returns the loss.
  std::string targets = "labels";                   ///< Batch field that the loss compares with.
  int output = 0;                                   ///< Which output, if forward returns a tuple.
};

struct DataSource {
  std::string format;                ///< "text" (bytes) or "tokens" (uint16 or uint32).
  std::string path;                  ///< A path or a glob; matches are taken in sorted order.
  std::int64_t sequence_length = 0;  ///< Tokens a sample.
  /// For "tokens": "uint16" or "uint32" asks for files without a header; empty: each file's header says it.
  std::string dtype;
};

struct DataConfig {
  DataSource train;
  std::optional<DataSource> eval;
  std::int64_t batch_size = 1;  ///< Samples a process and micro-step.
  bool shuffle = true;
  bool drop_last = true;  ///< false: the last batch is completed from the start.
};

struct OptimizerConfig {
  std::string type = "adamw";
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0.01;
  std::vector<std::string> no_decay;  ///< Parameters whose name contains one of these get no weight decay.
};

struct SchedulerConfig {
  std::string type = "constant";  ///< transformers' names: constant, constant_with_warmup, linear, cosine.
  std::int64_t warmup_steps = 0;
  double min_lr_ratio = 0.0;     ///< Of `lr`; only with cosine.
  std::int64_t total_steps = 0;  ///< 0: max_steps.
};

struct CheckpointConfig {
  std::int64_t every = 0;        ///< Steps; 0: never, else also at the last step.
  std::int64_t total_limit = 0;  ///< Checkpoints kept; 0: all.
};

/// The least factor by which a loss in float16 is multiplied: below float16's least normal number the
/// gradient of the loss itself, which is the factor, is no longer exact.
inline constexpr double kLeastScale = 0x1p-14;

/// Of the factor by which a loss in float16 is multiplied before backward: torch.amp.GradScaler's defaults.
struct GradScalerConfig {
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  std::int64_t growth_interval = 2000;  ///< Steps.
};

/// torch's PowerSGDState, with its defaults.
struct PowerSgdConfig {
  std::int64_t matrix_approximation_rank = 1;
  std::int64_t start_iter = 1000;  ///< So many steps before it are reduced as they are.
  /// A parameter's gradient is sent whole if its factors are not smaller than it by more than this.
  double min_compression_rate = 2;
  bool use_error_feedback = true;  ///< What a step loses is added to the next.
  bool warm_start = true;          ///< The factors of a step begin with those of the one before.
  double orthogonalization_epsilon = 0;
  std::uint32_t random_seed = 0;
};

/// Of MULTI_CPU and MULTI_GPU: what Accelerate's DistributedDataParallelKwargs register.
struct DdpConfig {
  CommHookType comm_hook = CommHookType::kNo;
  /// kFp16 or kBf16: the hook gets the gradient in that dtype. kNo without a hook.
  CommHookType comm_wrapper = CommHookType::kNo;
  PowerSgdConfig power_sgd;  ///< Used with kPowerSgd only.
};

/// Which steps a trace is recorded of; both are in it.
struct ProfileConfig {
  std::int64_t first_step = 0;
  std::int64_t last_step = 0;
};

struct TrainingConfig {
  ModelConfig model;
  DataConfig data;
  OptimizerConfig optimizer;
  SchedulerConfig lr_scheduler;
  std::int64_t max_steps = 0;
  std::int64_t gradient_accumulation_steps = 1;
  std::optional<double> max_grad_norm;
  GradScalerConfig grad_scaler;  ///< Used with float16 only.
  DdpConfig ddp;                 ///< All defaults where nothing is replicated over several ranks.
  /// A step whose loss or gradient is infinite or NaN changes no weight, instead of ending the run.
  bool skip_nonfinite = false;
  std::int64_t eval_every = 0;  ///< Steps; 0: never, else also at the last step.
  std::int64_t log_every = 10;
  std::uint64_t seed = 42;
  std::filesystem::path output_dir;
  CheckpointConfig checkpoint;
  std::optional<ProfileConfig> profile;
};

struct LaunchConfig {
  int num_processes = 1;  ///< Ranks in all, over all machines.
  int num_machines = 1;
  int machine_rank = 0;
  std::string main_process_ip = "127.0.0.1";
  int main_process_port = 29500;  ///< 0: a free one.
  bool use_cpu = false;
  std::vector<int> gpu_ids;  ///< Empty: no GPU. Else the devices of this machine's local ranks.
  Backend backend = Backend::kAuto;
  double collective_timeout_s = 1800;  ///< How long a rank waits for the others, whatever it waits for.
  double grace_period_s = 30;          ///< From SIGTERM to SIGKILL.
  std::filesystem::path log_dir;       ///< Empty: `<output_dir>/logs` for training, else no log files.
  std::filesystem::path worker;        ///< Another accel-worker than the installed one; empty: that one.
};

struct Config {
  DistributedType distributed_type = DistributedType::kNo;
  std::string mixed_precision = "no";
  FsdpConfig fsdp;
  LaunchConfig launch;
  std::optional<TrainingConfig> training;  ///< Absent for `accel launch CONFIG -- PROGRAM`.
};

/// The resolved configuration as JSON and back; from_json(to_json(c)) equals c. config_from_json throws an
/// Error of kind kUsage for a document that to_json did not write.
nlohmann::json config_to_json(const Config& config);
Config config_from_json(const nlohmann::json& document);

}  // namespace accel::core
