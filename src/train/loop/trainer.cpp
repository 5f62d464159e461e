#include "train/loop/trainer.hpp"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>

#include "base/error.hpp"
#include "base/files/file.hpp"
#include "base/log.hpp"
#include "plan/schedule/grad_scaler.hpp"
#include "train/checkpoint/save.hpp"
#include "train/fsdp/sharded_model.hpp"
#include "train/graph/vocabulary.hpp"
#include "train/loop/agreement.hpp"
#include "train/loop/batches.hpp"
#include "train/loop/evaluate.hpp"
#include "train/loop/open_model.hpp"
#include "train/loop/profile.hpp"
#include "train/loop/run_report.hpp"
#include "train/loop/step.hpp"
#include "train/optim/adamw.hpp"

namespace accel::train {
namespace {

using Clock = std::chrono::steady_clock;

ShardingOptions sharding_options(const config::Config& config) {
  const config::TrainingConfig& training = *config.training;
  ShardingOptions options;
  options.fsdp = config.fsdp;
  options.no_decay = training.optimizer.no_decay;
  options.weights = {training.model.weights, training.model.init_std, training.seed,
                     training.model.broadcast_from_rank0};
  options.poison = std::getenv("ACCEL_POISON") != nullptr;
  // For these types Accelerate uses DistributedDataParallel, which broadcasts buffers.
  options.broadcast_buffers = config.distributed_type == config::DistributedType::kMultiCpu ||
                              config.distributed_type == config::DistributedType::kMultiGpu;
  options.ddp = training.ddp;
  return options;
}

/// Returns the number of tokens that the model knows, for checks of the data, or nullopt if the model's graph
/// does not show it.
std::optional<std::int64_t> known_tokens(ModelFile& file, const config::ModelConfig& config) {
  const auto input = std::find(config.inputs.begin(), config.inputs.end(), "input_ids");
  if (input == config.inputs.end()) return std::nullopt;
  return vocabulary_of(file.module(), static_cast<std::size_t>(input - config.inputs.begin()));
}

class Trainer {
 public:
  Trainer(const config::Config& config, at::Device device, Group& group, const MeshGroups& groups)
      : config_(*config.training),
        device_(device),
        group_(group),
        store_(config_.output_dir / "checkpoints"),
        batches_(config_.data, config_.seed, group.rank(), group.size(), device),
        file_(open_model(config_.model, group)),
        vocabulary_(known_tokens(file_, config_.model)),
        model_(std::move(file_), sharding_options(config), device, groups),
        optimizer_(config_.optimizer, model_.trainable_buffers(), model_.groups().place().shard),
        steps_(config_, batches_, model_, optimizer_, scaler_, group),
        report_(config, group.rank(), group.size(), device),
        profiler_(config_.profile, config_.output_dir / "profile", group.rank(), device) {
    if (config.fsdp.precision.is_float16()) scaler_.emplace(config_.grad_scaler);
    if (config_.data.eval) {
      eval_data_ = TokenStream::open(*config_.data.eval);
      if (eval_data_->windows(config_.data.eval->sequence_length) == 0) {
        throw Error(ErrorKind::kUsage,
                    fmt::format("training.data.eval: {} tokens are fewer than one sample of {}",
                                eval_data_->size(), config_.data.eval->sequence_length));
      }
    }
    check_tokens();
    model_.set_training(true);  // The exported file may be in evaluation mode.
    if (config_.checkpoint.every == 0)
      report_.say("no checkpoint will be written: training.checkpoint.every is 0");
    require_agreement(group_, config, model_.structure(), batches_.stream().size());
    report_.model(model_);
  }

  void run() {
    report_.start();
    for (std::int64_t step = 1; step <= config_.max_steps; ++step) {
      profiler_.begin_step(step);
      const StepResult result = steps_.run(step);
      if (const auto trace = profiler_.end_step(step))
        report_.say(fmt::format("wrote the profile {}", trace->string()));
      report_.step(step, result, batches_.epoch(), scaler_);
      const bool last = step == config_.max_steps;
      if (eval_data_ && config_.eval_every > 0 && (last || step % config_.eval_every == 0)) evaluate_at(step);
      if (config_.checkpoint.every > 0 && (last || step % config_.checkpoint.every == 0)) save(step, result);
    }
    report_.end_of_run(model_, optimizer_);
    // The groups are shut down here and not in the destructor, which also runs after an error.
    group_.barrier();
    model_.groups().shut_down();
  }

 private:
  /// Makes the data refuse tokens that the model does not know. Without this check each device fails in its
  /// own way, and none names the file.
  void check_tokens() {
    if (!vocabulary_) {
      log::debug("the model's graph does not show its vocabulary; tokens are not checked against it");
      return;
    }
    batches_.set_vocabulary(*vocabulary_);
    if (eval_data_) eval_data_->set_vocabulary(*vocabulary_);
  }

  void evaluate_at(std::int64_t step) {
    const Clock::time_point begin = Clock::now();
    const double loss = without_sign_of_nan(evaluate(model_, config_, *eval_data_, device_, group_));
    report_.evaluation(step, loss, seconds_since(begin));
  }

  void save(std::int64_t step, const StepResult& result) {
    const Clock::time_point begin = Clock::now();
    const auto path = save_checkpoint(
        store_, model_, optimizer_, config_,
        {step, batches_.epoch(), result.lr, config_.seed, scaler_, RandomState::now(device_)}, group_);
    report_.saved(step, path, seconds_since(begin));
  }

  const config::TrainingConfig& config_;
  at::Device device_;
  Group& group_;
  ckpt::RunCheckpoints store_;
  TrainingBatches batches_;
  ModelFile file_;  ///< The constructor moves it into model_.
  std::optional<std::int64_t> vocabulary_;
  ShardedModel model_;
  AdamW optimizer_;
  std::optional<GradScaler> scaler_;  ///< Only float16 has a loss scale.
  StepRunner steps_;
  RunReport report_;
  StepProfiler profiler_;
  std::optional<TokenStream> eval_data_;
};

/// Prepares the run's directory on rank 0 before any rank writes into it. No other run uses it, because the
/// launcher holds a lock.
void prepare_output(const config::TrainingConfig& config) {
  make_directories(config.output_dir);
  ckpt::RunCheckpoints(config.output_dir / "checkpoints").sweep();
}

}  // namespace

void train(const config::Config& config, const Rank& rank, at::Device device, Group& group,
           const std::function<void(const std::function<void()>&)>& guarded) {
  if (!config.training) throw Error(ErrorKind::kUsage, "the configuration has no training section");
  at::manual_seed(config.training->seed + static_cast<std::uint64_t>(rank.rank));
  if (group.rank() == 0) prepare_output(*config.training);
  group.barrier();
  // Both are declared outside of the call, so that `guarded` gets an error before they are destroyed.
  std::optional<MeshGroups> groups;
  std::optional<Trainer> trainer;
  guarded([&] {
    groups.emplace(MeshGroups::split(group, config.fsdp));
    trainer.emplace(config, device, group, *groups);
    trainer->run();
  });
}

}  // namespace accel::train
