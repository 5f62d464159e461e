#include "train/loop/trainer.hpp"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/file.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "plan/schedule/grad_scaler.hpp"
#include "plan/schedule/learning_rate.hpp"
#include "ranks/collective_order.hpp"
#include "report/metrics_log.hpp"
#include "train/checkpoint/save.hpp"
#include "train/device/memory_use.hpp"
#include "train/device/read_numbers.hpp"
#include "train/fsdp/sharded_model.hpp"
#include "train/graph/vocabulary.hpp"
#include "train/loop/agreement.hpp"
#include "train/loop/batches.hpp"
#include "train/loop/evaluate.hpp"
#include "train/loop/loss.hpp"
#include "train/loop/open_model.hpp"
#include "train/loop/profile.hpp"
#include "train/optim/adamw.hpp"
#include "train/optim/clip.hpp"

namespace accel::train {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::string text_of(const Mesh& mesh) {
  const std::string ranks = fmt::format("{} {}", mesh.shards, mesh.shards == 1 ? "rank" : "ranks");
  return mesh.replicas == 1 ? ranks : fmt::format("{}, in {} replicas", ranks, mesh.replicas);
}

ShardingOptions sharding_options(const core::Config& config) {
  const core::TrainingConfig& training = *config.training;
  ShardingOptions options;
  options.fsdp = config.fsdp;
  options.no_decay = training.optimizer.no_decay;
  options.weights = {training.model.weights, training.model.init_std, training.seed,
                     training.model.broadcast_from_rank0};
  options.poison = std::getenv("ACCEL_POISON") != nullptr;
  // What Accelerate runs with DistributedDataParallel.
  options.broadcast_buffers = config.distributed_type == core::DistributedType::kMultiCpu ||
                              config.distributed_type == core::DistributedType::kMultiGpu;
  options.ddp = training.ddp;
  return options;
}

/// The vocabulary by which the tokens of the data are checked; nothing if the model's graph does not show it.
std::optional<std::int64_t> known_tokens(ModelFile& file, const core::ModelConfig& config) {
  const auto input = std::find(config.inputs.begin(), config.inputs.end(), "input_ids");
  if (input == config.inputs.end()) return std::nullopt;
  return vocabulary_of(file.module(), static_cast<std::size_t>(input - config.inputs.begin()));
}

/// Which sign a NaN has depends on the processor, and would be printed.
double without_sign_of_nan(double value) { return std::isnan(value) ? std::abs(value) : value; }

/// How a communication hook makes a finite gradient infinite or NaN, for a hint.
std::string hook_hint(const core::DdpConfig& ddp) {
  using core::CommHookType;
  if (ddp.comm_hook == CommHookType::kFp16 || ddp.comm_wrapper == CommHookType::kFp16)
    return "training.ddp makes gradients float16, which ends at 65504: bf16 does not; ";
  if (ddp.comm_hook == CommHookType::kPowerSgd && ddp.power_sgd.orthogonalization_epsilon == 0) {
    return "a parameter whose gradient is all 0 needs "
           "training.ddp.comm_state_option.orthogonalization_epsilon; ";
  }
  return "";
}

/// Steps that may be skipped one after another: with weights that are NaN no other step would follow.
constexpr std::int64_t kMostSkipped = 100;

/// What one optimizer step yields, the same on every rank.
struct StepResult {
  double loss = 0;       ///< Mean over ranks and micro-steps.
  double grad_norm = 0;  ///< Global, before clipping.
  double lr = 0;
  /// The loss or a gradient was infinite or NaN, so there was no step of the optimizer.
  bool skipped = false;
};

class Trainer {
 public:
  Trainer(const core::Config& config, at::Device device, Group& group, const MeshGroups& groups)
      : config_(*config.training),
        fsdp_(config.fsdp),
        device_(device),
        group_(group),
        store_(config_.output_dir / "checkpoints"),
        batches_(config_.data, config_.seed, group.rank(), group.size(), device),
        file_(open_model(config_.model, group)),
        vocabulary_(known_tokens(file_, config_.model)),
        model_(std::move(file_), sharding_options(config), device, groups),
        optimizer_(config_.optimizer, model_.trainable_buffers(), model_.groups().place().shard),
        metrics_(group.rank() == 0 ? config_.output_dir / "metrics.jsonl" : std::filesystem::path()),
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
    model_.set_training(true);  // Whatever it was when it was exported.
    if (config_.checkpoint.every == 0) say("no checkpoint will be written: training.checkpoint.every is 0");
    require_agreement(group_, config, model_.structure(), batches_.stream().size());
    report_model();
  }

  void run() {
    start_ = Clock::now();
    since_log_ = start_;
    for (std::int64_t step = 1; step <= config_.max_steps; ++step) {
      profiler_.begin_step(step);
      const StepResult result = run_step(step);
      if (const auto trace = profiler_.end_step(step))
        say(fmt::format("wrote the profile {}", trace->string()));
      if (step % config_.log_every == 0 || step == config_.max_steps) log_step(step, result);
      const bool last = step == config_.max_steps;
      if (eval_data_ && config_.eval_every > 0 && (last || step % config_.eval_every == 0))
        log_evaluation(step);
      if (config_.checkpoint.every > 0 && (last || step % config_.checkpoint.every == 0)) save(step, result);
    }
    report_idle();
    if (optimizer_.steps() == 0 && group_.rank() == 0) {
      log::warn(fmt::format("none of the {} steps changed a weight: {}", config_.max_steps,
                            "in each the loss or a gradient was infinite or NaN"));
    }
    // Here, where nothing has gone wrong: the destructor is for errors, too.
    group_.barrier();
    model_.groups().shut_down();
  }

 private:
  void say(const std::string& text) const {
    if (group_.rank() == 0) log::info(text);
  }

  /// Every device fails in its own way on a token that the model does not know, and none names the file.
  void check_tokens() {
    if (!vocabulary_) {
      log::debug("the model's graph does not show its vocabulary; tokens are not compared with it");
      return;
    }
    batches_.set_vocabulary(*vocabulary_);
    if (eval_data_) eval_data_->set_vocabulary(*vocabulary_);
  }

  void report_model() const {
    std::int64_t parameters = 0;
    std::int64_t trainable = 0;
    for (const ParameterInfo& parameter : model_.structure().parameters) {
      const std::int64_t numel = checked_numel(parameter.shape);
      parameters += numel;
      if (parameter.requires_grad) trainable += numel;
    }
    std::int64_t shard = 0;
    for (const FlatBuffer* buffer : model_.trainable_buffers()) shard += buffer->layout().shard_numel;
    // float32: the parameter, its gradient, and AdamW's two moments.
    constexpr std::int64_t kBytesPerParameter = 16;
    say(fmt::format(
        "{} parameters, {} trainable, in {} units over {}; these with gradients and optimizer state {} in "
        "all, {} a rank",
        parameters, trainable, model_.units().size(), text_of(model_.groups().mesh()),
        format_bytes(static_cast<std::uint64_t>(trainable * kBytesPerParameter)),
        format_bytes(static_cast<std::uint64_t>(shard * kBytesPerParameter))));
    report_offload();
  }

  void report_idle() const {
    for (const auto& unit : model_.units()) {
      if (unit->calls() == 0) say(fmt::format("the wrapped module '{}' never ran", unit->plan().module));
    }
    if (optimizer_.steps() == 0) return;
    std::vector<std::string> idle;
    for (const AdamW::State& state : optimizer_.states()) {
      for (std::size_t i = 0; i < state.steps.size(); ++i) {
        if (state.steps[i] == 0) idle.push_back(state.buffer->layout().parameters[i].spec.fqns.front());
      }
    }
    if (idle.empty()) return;
    const std::size_t shown = std::min<std::size_t>(idle.size(), 5);
    say(fmt::format("{} trainable {} no gradient in any step and {} as before: {}{}", idle.size(),
                    idle.size() == 1 ? "parameter had" : "parameters had", idle.size() == 1 ? "is" : "are",
                    fmt::join(idle.begin(), idle.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
                    idle.size() > shown ? ", ..." : ""));
  }

  void report_offload() const {
    std::vector<std::string> what;
    if (fsdp_.offload_params) what.emplace_back("shards, gradients and optimizer state");
    if (fsdp_.activation_offload) what.emplace_back("what checkpointed modules keep");
    if (what.empty()) return;
    say(fmt::format(
        "offload: {} {}", fmt::join(what, ", and "),
        device_.is_cpu() ? "lie where the ranks compute, in the host's memory" : "lie in the host's memory"));
  }

  StepResult run_step(std::int64_t step) {
    StepResult result;
    const std::int64_t micro_steps = config_.gradient_accumulation_steps;
    at::Tensor loss_sum;  // float64, where the loss is: the host need not wait for each micro-step.
    std::int64_t done = 0;
    // An epoch's last group may be shorter; it steps too.
    for (bool reduce = false; !reduce;) {
      const Batch batch = batches_.next();
      reduce = ++done == micro_steps || batches_.last_of_epoch();
      model_.begin_micro_batch(reduce);
      const at::Tensor loss = loss_of(config_.model, model_.forward(inputs_of(config_.model, batch)), batch);
      backward(micro_steps == 1 ? loss : loss / static_cast<double>(micro_steps));
      model_.finish_backward();
      const at::Tensor value = loss.detach().to(at::kDouble);
      loss_sum = loss_sum.defined() ? loss_sum + value : value;
      tokens_ += batch.input_ids.numel();
      samples_ += batch.input_ids.size(0);
    }
    // One wait for the device, and one all-reduce, for both: the losses, and the squares of the gradients.
    std::vector<at::Tensor> numbers = gradient_norms(model_.trainable_buffers());
    numbers.push_back(loss_sum);
    const std::vector<double> values = read_numbers(numbers);
    const double order = model_.take_collective_order();
    GradientPresence presence = gradient_presence(model_.trainable_buffers());
    std::array<double, 5> sums = {
        values.back() / static_cast<double>(done),
        gradient_square_sum(model_.trainable_buffers(), model_.groups().mesh().shards, values), order,
        order * order, static_cast<double>(count_missing(presence))};
    group_.all_reduce_sum(sums);
    require_one_order(sums[2], sums[3], group_.size(), fmt::format("step {}", step));
    if (sums[4] > 0) presence = on_any_rank(std::move(presence), group_);
    result.loss = without_sign_of_nan(sums[0] / group_.size());
    // Every replica adds the same squares. Over all ranks nevertheless: then all have the same bits, and clip
    // alike.
    const double unscale = scaler_ ? scaler_->inverse() : 1;
    result.grad_norm = without_sign_of_nan(std::sqrt(sums[1] / model_.groups().mesh().replicas) * unscale);
    // The sum is over all ranks, so all skip the step, or none.
    const bool finite_loss = std::isfinite(result.loss);
    result.skipped = !finite_loss || !std::isfinite(result.grad_norm);
    const bool overflowed = scaler_ && finite_loss && result.skipped;
    if (result.skipped && !overflowed) report_nonfinite(step, result);
    if (!overflowed) skipped_in_a_row_ = result.skipped ? skipped_in_a_row_ + 1 : 0;
    const std::int64_t total =
        config_.lr_scheduler.total_steps > 0 ? config_.lr_scheduler.total_steps : config_.max_steps;
    result.lr = config_.optimizer.lr * lr_factor(config_.lr_scheduler, optimizer_.steps(), total);
    if (!result.skipped) {
      const double clip = config_.max_grad_norm ? clip_factor(result.grad_norm, *config_.max_grad_norm) : 1;
      scale_gradients(model_.trainable_buffers(), unscale * clip);
      optimizer_.step(result.lr, presence);
    } else {
      model_.forget_hook_state();
    }
    model_.clear_gradients();
    // A loss that is NaN says nothing of the scale.
    if (scaler_ && finite_loss) scaler_->update(overflowed, step);
    skipped_ += result.skipped ? 1 : 0;
    return result;
  }

  void report_nonfinite(std::int64_t step, const StepResult& result) const {
    const std::string what =
        fmt::format("step {}: the loss is {} and the gradient norm {}", step, result.loss, result.grad_norm);
    if (!config_.skip_nonfinite) {
      throw Error(ErrorKind::kFailure, what)
          .hint(hook_hint(config_.ddp) +
                "try a smaller learning rate, more warm-up steps, or max_grad_norm; training.skip_nonfinite: "
                "true goes on without such steps");
    }
    if (skipped_in_a_row_ >= kMostSkipped) {
      throw Error(ErrorKind::kFailure,
                  fmt::format("{}, as in the {} steps before, which were skipped", what, kMostSkipped))
          .hint(
              "is there a NaN in the data, or in what the model keeps in buffers? a smaller learning rate "
              "may help");
    }
    if (group_.rank() == 0) log::warn(what + "; no weight is changed");
  }

  void backward(const at::Tensor& loss) const {
    // In float32: a loss of the model's own may be float16, which has no 65536.
    (scaler_ ? loss.to(at::kFloat) * scaler_->scale() : loss).backward();
  }

  void log_step(std::int64_t step, const StepResult& result) {
    const double seconds = seconds_since(since_log_) - pause_s_;
    const auto ranks = static_cast<double>(group_.size());
    const double tokens_per_s = static_cast<double>(tokens_) * ranks / seconds;
    nlohmann::ordered_json line = {{"step", step},
                                   {"loss", result.loss},
                                   {"lr", result.lr},
                                   {"grad_norm", result.grad_norm},
                                   {"samples_per_s", static_cast<double>(samples_) * ranks / seconds},
                                   {"tokens_per_s", tokens_per_s},
                                   {"step_time_s", seconds / static_cast<double>(step - logged_step_)},
                                   {"epoch", batches_.epoch()},
                                   {"max_rss_bytes", max_rss_bytes()}};
    if (const auto bytes = max_memory_allocated_bytes(device_)) line["max_memory_allocated_bytes"] = *bytes;
    if (scaler_) line["scale"] = scaler_->scale();
    if (scaler_ || config_.skip_nonfinite) line["skipped"] = skipped_;
    metrics_.write(line);
    const double left =
        seconds_since(start_) / static_cast<double>(step) * static_cast<double>(config_.max_steps - step);
    const std::string end = step == config_.max_steps ? "done" : format_duration(left) + " left";
    say(fmt::format("step {:>{}}/{}  loss {:.4f}  lr {:.2e}  grad norm {:.3f}  {}{:.0f} tokens/s  {}", step,
                    fmt::formatted_size("{}", config_.max_steps), config_.max_steps, result.loss, result.lr,
                    result.grad_norm, scaling(), tokens_per_s, end));
    since_log_ = Clock::now();
    pause_s_ = 0;
    tokens_ = 0;
    samples_ = 0;
    skipped_ = 0;
    logged_step_ = step;
  }

  /// For the line of a step; empty but in float16.
  [[nodiscard]] std::string scaling() const {
    if (!scaler_) return "";
    const std::string scale = fmt::format("scale {:g}  ", scaler_->scale());
    if (skipped_ == 0) return scale;
    return fmt::format("{}{} {} skipped  ", scale, skipped_, skipped_ == 1 ? "step" : "steps");
  }

  void log_evaluation(std::int64_t step) {
    const Clock::time_point begin = Clock::now();
    const double loss = without_sign_of_nan(evaluate(model_, config_, *eval_data_, device_, group_));
    const double seconds = seconds_since(begin);
    metrics_.write({{"step", step}, {"eval_loss", loss}, {"eval_time_s", seconds}});
    say(fmt::format("step {}  held-out loss {:.6f}  ({})", step, loss, format_duration(seconds)));
    pause_s_ += seconds;
  }

  void save(std::int64_t step, const StepResult& result) {
    const Clock::time_point begin = Clock::now();
    const auto path = save_checkpoint(
        store_, model_, optimizer_, config_,
        {step, batches_.epoch(), result.lr, config_.seed, scaler_, RandomState::now(device_)}, group_);
    const double seconds = seconds_since(begin);
    metrics_.write(
        {{"step", step}, {"checkpoint", path.string()}, {"save_time_s", seconds}, {"stall_s", seconds}});
    say(fmt::format("saved {}  ({})", path.string(), format_duration(seconds)));
    pause_s_ += seconds;
  }

  const core::TrainingConfig& config_;
  const core::FsdpConfig& fsdp_;
  at::Device device_;
  Group& group_;
  ckpt::RunCheckpoints store_;
  TrainingBatches batches_;
  ModelFile file_;  ///< Until model_ has it.
  std::optional<std::int64_t> vocabulary_;
  ShardedModel model_;
  AdamW optimizer_;
  std::optional<GradScaler> scaler_;  ///< Of float16.
  MetricsLog metrics_;
  StepProfiler profiler_;
  std::optional<TokenStream> eval_data_;

  Clock::time_point start_;
  Clock::time_point since_log_;
  double pause_s_ = 0;       ///< Of evaluations and saves since the last logged step.
  std::int64_t tokens_ = 0;  ///< Of this rank since the last logged step.
  std::int64_t samples_ = 0;
  std::int64_t skipped_ = 0;  ///< Steps.
  std::int64_t skipped_in_a_row_ = 0;
  std::int64_t logged_step_ = 0;
};

/// Rank 0 makes the run's directory ready before anyone writes into it. It is this run's alone: the launcher
/// holds a lock.
void prepare_output(const core::TrainingConfig& config) {
  make_directories(config.output_dir);
  ckpt::RunCheckpoints(config.output_dir / "checkpoints").sweep();
}

}  // namespace

void train(const core::Config& config, const Rank& rank, at::Device device, Group& group,
           const std::function<void(const std::function<void()>&)>& guarded) {
  if (!config.training) throw Error(ErrorKind::kUsage, "the configuration has no training section");
  at::manual_seed(config.training->seed + static_cast<std::uint64_t>(rank.rank));
  if (group.rank() == 0) prepare_output(*config.training);
  group.barrier();
  // Both are outside, so that nothing that ranks share ends before `guarded` has the error.
  std::optional<MeshGroups> groups;
  std::optional<Trainer> trainer;
  guarded([&] {
    groups.emplace(MeshGroups::split(group, config.fsdp));
    trainer.emplace(config, device, group, *groups);
    trainer->run();
  });
}

}  // namespace accel::train
