#include "train/loop/run_report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/checked.hpp"
#include "base/host/memory.hpp"
#include "base/log.hpp"
#include "base/seconds.hpp"
#include "base/text.hpp"
#include "plan/layout/optimizer_plan.hpp"
#include "report/command_sink.hpp"
#include "report/event_file.hpp"
#include "train/device/memory_use.hpp"

namespace accel::train {
namespace {

std::string text_of(const Mesh& mesh) {
  const std::string ranks = fmt::format("{} {}", mesh.shards(), mesh.shards() == 1 ? "rank" : "ranks");
  const int parts = mesh.size(Axis::kSp);
  return ranks + (mesh.replicas() == 1 ? "" : fmt::format(", in {} replicas", mesh.replicas())) +
         (parts == 1 ? "" : fmt::format(", {} share a sequence", parts)) +
         (mesh.tp() == 1 ? "" : fmt::format(" x {} parts (tp)", mesh.tp()));
}

std::int64_t attempt() {
  const char* number = std::getenv("ACCEL_ATTEMPT");
  return number == nullptr ? 0 : std::atoll(number);
}

}  // namespace

RunReport::RunReport(const config::Config& config, int rank, at::Device device)
    : config_(*config.training), fsdp_(config.fsdp), rank_(rank), device_(device), attempt_(attempt()) {
  if (rank != 0) return;
  sinks_.push_back(std::make_unique<JsonLines>(config_.output_dir / "metrics.jsonl"));
  sinks_.push_back(std::make_unique<LogLines>(config_.max_steps));
  if (!config_.metrics_command.empty())
    sinks_.push_back(std::make_unique<CommandSink>(config_.metrics_command, config_.output_dir));
  if (config_.tensorboard) sinks_.push_back(std::make_unique<EventFile>(config_.output_dir / "tensorboard"));
}

void RunReport::write(Metrics metrics) const {
  metrics["time"] = seconds_since_1970();
  metrics["attempt"] = attempt_;
  for (const auto& sink : sinks_) sink->write(metrics);
}

void RunReport::say(const std::string& text) const {
  if (rank_ == 0) log::info(text);
}

void RunReport::model(const ShardedModel& model) const {
  std::int64_t parameters = 0;
  std::int64_t trainable = 0;
  for (const ParameterInfo& parameter : model.structure().parameters) {
    const std::int64_t numel = checked_numel(parameter.shape);
    parameters += numel;
    if (parameter.requires_grad) trainable += numel;
  }
  // The parameter and its gradient are float32.
  constexpr std::int64_t kParameterAndGradient = 8;
  std::int64_t total = trainable * kParameterAndGradient;
  std::uint64_t shard = 0;
  for (const FlatBuffer* buffer : model.trainable_buffers()) {
    const FlatLayout& layout = buffer->layout();
    shard += static_cast<std::uint64_t>(layout.shard_numel * kParameterAndGradient) +
             state_bytes(layout, model.optimizer_plan());
    for (const FlatParameter& parameter : layout.parameters) {
      const OptimizerGroup& group = model.optimizer_plan().groups()[parameter.spec.group];
      total += state_bytes_of(group.tensors, parameter.spec.whole_shape());
    }
  }
  say(fmt::format(
      "{} parameters, {} trainable, in {} units over {}; the trainable ones with gradients and optimizer "
      "state take {} in total, {} per rank",
      parameters, trainable, model.units().size(), text_of(model.groups().mesh()),
      format_bytes(static_cast<std::uint64_t>(total)), format_bytes(shard)));
  offload();
}

void RunReport::offload() const {
  std::vector<std::string> what;
  if (fsdp_.offload_params) what.emplace_back("shards, gradients and optimizer state");
  if (fsdp_.activation_offload) what.emplace_back("saved activations of checkpointed modules");
  if (what.empty()) return;
  say(fmt::format(
      "offload: {} are {}", fmt::join(what, ", and "),
      device_.is_cpu() ? "in the host's memory, where the ranks compute" : "in the host's memory"));
}

void RunReport::end_of_run(const ShardedModel& model, const Optimizer& optimizer) const {
  for (const auto& unit : model.units()) {
    if (unit->calls() == 0) say(fmt::format("the wrapped module '{}' never ran", unit->plan().module));
  }
  if (optimizer.steps() == 0) {
    if (rank_ != 0) return;
    log::warn(fmt::format(
        "none of the {} steps changed a weight: in each the loss or a gradient was infinite or NaN, or no "
        "label counted",
        config_.max_steps));
    return;
  }
  const std::vector<std::string> unused = optimizer.unused();
  if (unused.empty()) return;
  const std::size_t shown = std::min<std::size_t>(unused.size(), 5);
  const bool one = unused.size() == 1;
  say(fmt::format("{} trainable {} no gradient in any step and {} unchanged: {}{}", unused.size(),
                  one ? "parameter had" : "parameters had", one ? "is" : "are",
                  fmt::join(unused.begin(), unused.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
                  unused.size() > shown ? ", ..." : ""));
}

void RunReport::resumed(const std::filesystem::path& checkpoint, const ckpt::RunState& state,
                        double seconds) {
  say(fmt::format("resumed from {} at step {} of {}, epoch {:.3f}; read in {:.3f} s", checkpoint.string(),
                  state.step, config_.max_steps, state.epoch, seconds));
  skipped_ = state.skipped_since_log;
  loss_sum_ = state.loss_sum_since_log;
  steps_ = state.steps_since_log;
  for (const auto& metric : config_.model.metrics) {
    const auto before = state.metrics_since_log.find(metric.name);
    if (before != state.metrics_since_log.end()) metric_sums_.insert(*before);
  }
  samples_trained_ = state.samples_trained.value_or(0);
  epoch_ = state.epoch;
}

void RunReport::save(ckpt::RunState& state) const {
  state.skipped_since_log = skipped_;
  state.loss_sum_since_log = loss_sum_;
  state.steps_since_log = steps_;
  state.metrics_since_log = metric_sums_;
  state.samples_trained = samples_trained_;
}

void RunReport::close(std::chrono::seconds patience) {
  for (const auto& sink : sinks_) sink->close(patience);
}

void RunReport::start(std::int64_t done, double seconds) {
  for (const auto& sink : sinks_) sink->open(done);
  logged_step_ = done;
  start_s_ = seconds;
  since_log_ = begun_ = Clock::now();
}

void RunReport::step(std::int64_t step, const StepResult& result, double epoch,
                     const std::optional<GradScaler>& scaler) {
  times_.data_s += result.times.data_s;
  times_.forward_s += result.times.forward_s;
  times_.backward_s += result.times.backward_s;
  times_.reduce_s += result.times.reduce_s;
  times_.optimizer_s += result.times.optimizer_s;
  tokens_ += result.tokens;
  samples_ += result.samples;
  samples_trained_ += result.samples;
  epoch_ = epoch;
  skipped_ += result.skipped ? 1 : 0;
  if (std::isfinite(result.loss)) {
    loss_sum_ += result.loss;
    ++steps_;
  }
  for (std::size_t i = 0; i < result.metrics.size(); ++i) {
    ckpt::SumOfSteps& metric = metric_sums_[config_.model.metrics[i].name];
    if (!std::isfinite(result.metrics[i])) continue;
    metric.sum += result.metrics[i];
    ++metric.steps;
  }
  if (step % config_.log_every == 0 || step == config_.max_steps) end_interval(step, result, scaler);
}

void RunReport::last_step(std::int64_t step, const StepResult& result,
                          const std::optional<GradScaler>& scaler) {
  if (logged_step_ < step) end_interval(step, result, scaler);
}

void RunReport::end_interval(std::int64_t step, const StepResult& result,
                             const std::optional<GradScaler>& scaler) {
  write_step(step, result, scaler);
  since_log_ = Clock::now();
  pause_s_ = 0;
  tokens_ = 0;
  samples_ = 0;
  skipped_ = 0;
  loss_sum_ = 0;
  steps_ = 0;
  metric_sums_.clear();
  logged_step_ = step;
}

void RunReport::write_step(std::int64_t step, const StepResult& result,
                           const std::optional<GradScaler>& scaler) {
  const double seconds = seconds_since(since_log_) - pause_s_;
  Metrics line = {{"step", step},
                  {"loss", steps_ > 0 ? loss_sum_ / static_cast<double>(steps_) : NAN},
                  {"last_loss", result.loss},
                  {"lr", result.lr},
                  {"grad_norm", result.grad_norm},
                  {"samples", samples_trained_},
                  {"samples_per_s", static_cast<double>(samples_) / seconds},
                  {"tokens_per_s", static_cast<double>(tokens_) / seconds},
                  {"step_time_s", seconds / static_cast<double>(step - logged_step_)},
                  {"epoch", epoch_},
                  {"max_rss_bytes", max_rss_bytes()}};
  if (const auto bytes = max_memory_allocated_bytes(device_)) line["max_memory_allocated_bytes"] = *bytes;
  for (const auto& [name, metric] : metric_sums_)
    line["model_" + name] = metric.steps > 0 ? metric.sum / static_cast<double>(metric.steps) : NAN;
  if (scaler) line["scale"] = scaler->scale();
  if (scaler || config_.skip_nonfinite || skipped_ > 0) line["skipped"] = skipped_;
  write(std::move(line));
}

void RunReport::evaluation(std::int64_t step, const std::string& set, const Evaluation& evaluation,
                           double seconds) {
  const std::string prefix = evaluation_prefix(set);
  Metrics line = {{"step", step}, {prefix + "loss", evaluation.loss}, {prefix + "time_s", seconds}};
  if (evaluation.perplexity) line[prefix + "perplexity"] = *evaluation.perplexity;
  if (evaluation.accuracy) line[prefix + "accuracy"] = *evaluation.accuracy;
  if (!set.empty()) line["eval_set"] = set;
  write(std::move(line));
  pause_s_ += seconds;
  eval_s_ += seconds;
}

void RunReport::time_spent(std::int64_t step) {
  say(fmt::format("trained on {} {} since the beginning, {:.2f} {} of the data", samples_trained_,
                  samples_trained_ == 1 ? "sample" : "samples", epoch_, epoch_ == 1 ? "epoch" : "epochs"));
  write({{"step", step},
         {"run_time_s", start_s_ + seconds_since(begun_)},
         {"start_s", start_s_},
         {"data_s", times_.data_s},
         {"forward_s", times_.forward_s},
         {"backward_s", times_.backward_s},
         {"reduce_s", times_.reduce_s},
         {"optimizer_s", times_.optimizer_s},
         {"eval_s", eval_s_},
         {"save_s", save_s_}});
  if (!device_.is_cpu()) {
    say("these are times of the host; it runs ahead of the GPU in forward and backward, and waits for it at "
        "loss and gradient norm");
  }
}

void RunReport::stopped_early(std::int64_t step, const EarlyStopping& rule) {
  write({{"step", step}, {"stopped_early", rule.state()->patience_counter}, {"why", rule.why()}});
}

void RunReport::saved(const SavedCheckpoint& checkpoint) {
  write({{"step", checkpoint.step},
         {"checkpoint", checkpoint.path.string()},
         {"bytes", checkpoint.bytes},
         {"save_time_s", checkpoint.seconds},
         {"stall_s", checkpoint.stall_seconds}});
}

void RunReport::not_saved(std::int64_t step, const Error& error) {
  write({{"step", step}, {"checkpoint_error", error.message()}});
}

}  // namespace accel::train
