#include "train/loop/trainer.hpp"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/files/file.hpp"
#include "base/files/flight_record.hpp"
#include "base/log.hpp"
#include "base/seconds.hpp"
#include "ckpt/store/run_checkpoints.hpp"
#include "ckpt/store/run_lock.hpp"
#include "core/config/keys/number_settings.hpp"
#include "plan/schedule/early_stopping.hpp"
#include "plan/schedule/grad_scaler.hpp"
#include "plan/schedule/plateau.hpp"
#include "report/metric_sink.hpp"
#include "train/c10d/run_store.hpp"
#include "train/checkpoint/check_resumed.hpp"
#include "train/checkpoint/frozen_hash.hpp"
#include "train/checkpoint/load.hpp"
#include "train/checkpoint/load_foreign.hpp"
#include "train/checkpoint/rank_state.hpp"
#include "train/checkpoint/save.hpp"
#include "train/device/large_tensors.hpp"
#include "train/fsdp/sharded_model.hpp"
#include "train/loop/agreement.hpp"
#include "train/loop/batches.hpp"
#include "train/loop/evaluate.hpp"
#include "train/loop/evaluate_only.hpp"
#include "train/loop/model_loss.hpp"
#include "train/loop/model_options.hpp"
#include "train/loop/open_model.hpp"
#include "train/loop/profile.hpp"
#include "train/loop/run_report.hpp"
#include "train/loop/run_settings.hpp"
#include "train/loop/save_schedule.hpp"
#include "train/loop/step.hpp"
#include "train/optim/optimizer.hpp"

namespace accel::train {
namespace {

using Clock = std::chrono::steady_clock;

/// The seeds of two steps differ by more than any number of ranks.
constexpr std::uint64_t kSeedStride = 0x9e37'79b9'7f4a'7c15U;

/// The launcher of machine 0, where rank 0 is, holds the lock.
std::string lock_token() {
  const char* token = std::getenv("ACCEL_RUN_LOCK");
  return token == nullptr ? "" : token;
}

ckpt::RunCheckpoints::Writer writer_of(const config::TrainingConfig& config) {
  return {run_from_environment(), config.output_dir, lock_token()};
}

std::optional<Plateau> plateau_of(const config::TrainingConfig& config) {
  if (!config.lr_scheduler.follows_held_out_loss()) return std::nullopt;
  return Plateau(config.lr_scheduler, config.optimizer.lr);
}

std::optional<EarlyStopping> early_stopping_of(const config::TrainingConfig& config) {
  if (config.early_stopping.patience == 0) return std::nullopt;
  return EarlyStopping(config.early_stopping, config.best_metric);
}

class Trainer {
 public:
  Trainer(const config::Config& config, at::Device device, Group& group, const MeshGroups& groups,
          int local_ranks)
      : config_(*config.training),
        device_(device),
        group_(group),
        store_(config_.output_dir / "checkpoints", writer_of(config_)),
        batches_(config_.data, config_.model, config_.seed, groups.data(), device),
        opened_(open_model(config_.model, group)),
        graph_(opened_.file.graph_fingerprint()),
        vocabularies_(known_tokens(opened_.file, config_.model)),
        labels_(labels_for(config_.model, opened_.file.accel_json())),
        model_(std::move(opened_.file), sharding_options(config, opened_.weights, read_sums()), device,
               groups),
        optimizer_(std::make_unique<Optimizer>(model_.optimizer_plan(), model_.trainable_buffers(),
                                               model_.groups().place().shard, &model_.groups())),
        plateau_(plateau_of(config_)),
        early_stopping_(early_stopping_of(config_)),
        steps_(config_, batches_, model_, *optimizer_, scaler_, plateau_ ? &*plateau_ : nullptr),
        saver_(store_, model_, *optimizer_, config_, group, local_ranks),
        schedule_(config_.checkpoint),
        report_(config, group.rank(), device),
        profiler_(config_.profile, config_.output_dir / "profile", group.rank(), device) {
    require_head(config_.model, model_.head());
    reset_peak_of_large_tensors();  // The model is sharded.
    if (config_.checkpoint.resume_from.empty() && read_sums() != nullptr)
      check_sums_of_weights(config_, opened_.weights, read_sums_, group_);
    if (config.fsdp.precision.is_float16()) scaler_.emplace(config_.grad_scaler);
    batches_.set_input_dtypes(opened_.input_dtypes);
    held_out_ = open_held_out(config_, opened_.input_dtypes);
    for (const auto& [name, samples] : held_out_) {
      samples.require_dtypes_of(batches_.data());
      if (config_.data.check_labels) samples.require_meaning_of_labels(labels_);
    }
    settings_ = settings_of(config, graph_, batches_.data(), held_out_, groups.mesh(), group_.backend_name());
    // Read before tokens are checked: an unknown one is to be found by the rank that trains on it.
    const std::string data = fmt::format("{}, {:08x}", batches_.data().source().size_text(),
                                         batches_.data().source().fingerprint());
    check_tokens();
    batches_.set_labels(labels_);
    if (config_.data.check_labels) batches_.data().require_meaning_of_labels(labels_);
    model_.set_training(true);  // The exported file may be in evaluation mode.
    if (!config_.checkpoint.enabled())
      report_.say("no checkpoint will be written: training.checkpoint.every is 0");
    require_agreement(group_, config, model_.structure(), data);
    report_.model(model_);
    if (config_.model.uint8_divisor) report_.say(division_text(batches_.data().divided()));
    if (config_.checkpoint.adapter_only) frozen_hash_ = frozen_hash(model_, group_);
    if (!config_.checkpoint.resume_from.empty()) resume();
  }

  TrainingEnd run() {
    report_.start(first_step_ - 1, seconds_since(created_));
    // A signal kept the attempt before from an evaluation behind its last step.
    const bool is_made_up = evaluation_is_due_;
    if (is_made_up) flight::set_step(first_step_ - 1);
    if (is_made_up && !evaluate_at(first_step_ - 1)) return finish(first_step_ - 1, TrainingEnd::kPreempted);
    if (is_done()) {
      // If it is the evaluation that ends the run, an export is that of an earlier end.
      const bool exports = config_.checkpoint.exports_safetensors && (is_made_up || lacks_export());
      const flight::Label label("the export");
      const flight::Scope scope(FlightOp::kHostWork);
      if (group_.rank() == 0 && exports) saver_.export_model(config_.checkpoint.resume_from);
      return finish(first_step_ - 1, TrainingEnd::kFinished);
    }
    for (std::int64_t step = first_step_;; ++step) {
      flight::set_step(step);
      profiler_.begin_step(step);
      const SaveVotes votes = saver_.votes();
      const StepResult result = steps_.run(step, {votes.done, votes.failed, schedule_.vote(group_.rank())});
      if (result.error) {
        // Every rank has the error, so the last checkpoint before it can be completed.
        complete_save(/*survives=*/true);
        throw Error(*result.error);
      }
      flight::set_done(step);
      if (const auto trace = profiler_.end_step(step))
        report_.say(fmt::format("wrote the profile {}", trace->string()));
      report_.step(step, result, batches_.epoch(), scaler_);
      go_on_with_save({result.votes[0], result.votes[1]});
      evaluation_.clear();
      bool last = step == config_.max_steps;
      const bool evaluates =
          !held_out_.empty() && config_.eval_every > 0 && (last || step % config_.eval_every == 0);
      // The checkpoint comes first: an evaluation may take longer than the launcher waits.
      evaluation_is_due_ = evaluates && (result.stop || !evaluate_at(step));
      if (evaluation_is_due_ && last)
        report_.say("the last evaluation is left out, as a signal asked; `accel evaluate` makes it");
      const bool is_early = early_stopping_ && early_stopping_->is_reached() && !last;
      last |= is_early;
      if (is_early) report_.last_step(step, result, scaler_);
      const bool stops = (result.stop || evaluation_is_due_) && !last;
      const bool due = last || stops || schedule_.is_due(step, result.votes[2], saver_.in_flight());
      if (config_.checkpoint.enabled() && due) save(step, result, last, /*must_succeed=*/last || stops);
      if (last || stops) return finish(step, stops ? TrainingEnd::kPreempted : TrainingEnd::kFinished);
    }
  }

 private:
  /// Ends the run after `step`.
  TrainingEnd finish(std::int64_t step, TrainingEnd end) {
    const bool is_finished = end == TrainingEnd::kFinished;
    if (!is_finished)
      report_.say(fmt::format("stopped after step {} of {}, as a signal asked", step, config_.max_steps));
    flight::set_step(0);
    report_.time_spent(step);
    if (is_finished && step >= first_step_) report_.end_of_run(model_, *optimizer_);
    if (is_finished && step < config_.max_steps) report_.stopped_early(step, *early_stopping_);
    // The groups are shut down here and not in the destructor, which also runs after an error.
    group_.barrier();
    model_.groups().shut_down();
    const flight::Label label("the command that gets the metrics");
    const flight::Scope scope(FlightOp::kHostWork);
    // A run that was asked to end has launch.grace_period for everything.
    report_.close(std::chrono::seconds(is_finished ? 30 : 3));
    return end;
  }

  /// Whether the checkpoint to go on from is the last one of the run.
  [[nodiscard]] bool is_done() const {
    return first_step_ > config_.max_steps || (early_stopping_ && early_stopping_->is_reached());
  }

  [[nodiscard]] bool lacks_export() const {
    return config_.checkpoint.exports_safetensors && !std::filesystem::exists(config_.output_dir / "export");
  }

  /// Makes the data refuse tokens that the model does not know. Without this check each device fails in its
  /// own way, and none names the file.
  void check_tokens() {
    if (vocabularies_.empty())
      log::debug("the model's graph does not show its vocabulary; tokens are not checked against it");
    batches_.set_vocabularies(vocabularies_);
    for (HeldOutSamples& set : held_out_) set.samples.set_vocabularies(vocabularies_);
  }

  /// Goes on from the checkpoint that the launcher found. The model has its weights from it already.
  void resume() {
    const std::filesystem::path& checkpoint = config_.checkpoint.resume_from;
    const bool foreign = is_foreign(checkpoint);
    LoadedRun loaded =
        foreign ? load_foreign_run(checkpoint, model_, *optimizer_, scaler_)
                : load_run(checkpoint, model_, *optimizer_, scaler_, device_, read_sums(), settings_);
    if (!foreign) check_sums(checkpoint, loaded);
    ckpt::RunState& state = loaded.state;
    if (state.step >= config_.max_steps && !lacks_export()) {
      throw Error(ErrorKind::kUsage, fmt::format("'{}' is of step {}, and training.max_steps is {}",
                                                 checkpoint.string(), state.step, config_.max_steps));
    }
    require_frozen(checkpoint, state, model_, group_);
    if (foreign) {
      state.data = batches_.place_after(state.step, config_.gradient_accumulation_steps);
      state.settings = settings_;
      loaded.differences.push_back(
          fmt::format("the data goes on behind {} steps of this configuration", state.step));
    }
    batches_.go_to(state.data);
    if (foreign) state.epoch = batches_.epoch();
    if (!state.samples_trained) state.samples_trained = batches_.samples_trained();
    steps_.set_skipped_in_a_row(state.skipped_in_a_row);
    if (plateau_ && state.plateau) {
      plateau_->restore(*state.plateau);
      if (has_other_held_out(state.settings, settings_, "")) {
        plateau_->forget_losses();
        loaded.differences.push_back(
            fmt::format("the held-out data are others, so {} goes on with its learning rate, and compares "
                        "no loss with those before",
                        config_.lr_scheduler.type));
      }
    } else if (plateau_) {
      loaded.differences.push_back(
          fmt::format("the checkpoint has no state of {}; it begins anew", config_.lr_scheduler.type));
    }
    if (early_stopping_ && state.early_stopping) {
      const std::string& key = early_stopping_->metric().key();
      // A run that has ended only lacks its export.
      EarlyStopping before = *early_stopping_;
      before.restore(*state.early_stopping);
      const bool has_ended = before.is_reached() && lacks_export();
      if (!has_ended && has_other_held_out(state.settings, settings_, early_stopping_->metric().set())) {
        loaded.differences.push_back(
            fmt::format("the data of {} are others, so early stopping begins anew", key));
      } else if (state.early_stopping->metric == key) {
        early_stopping_->restore(*state.early_stopping);
      } else {
        loaded.differences.push_back(fmt::format("early stopping went by {} and goes by {}; it begins anew",
                                                 state.early_stopping->metric, key));
      }
    }
    first_step_ = state.step + 1;
    evaluation_is_due_ = state.evaluation_is_due && !held_out_.empty();
    report_.resumed(checkpoint, state, seconds_since(created_));
    for (const std::string& difference : loaded.differences) report_.say("resuming: " + difference);
    for (const std::string& change : config::changed_settings(state.settings, settings_))
      report_.say("resuming: " + change);
    // Last, because what comes before may draw numbers.
    if (loaded.random) {
      loaded.random->restore();
    } else {
      at::manual_seed(config_.seed + static_cast<std::uint64_t>(state.step) * kSeedStride +
                      static_cast<std::uint64_t>(model_.groups().mean().rank()));
    }
    // The metrics are cut when every rank has loaded the checkpoint.
    group_.barrier();
  }

  /// The sums of the ranges that are read of the checkpoint; null if they are not to be checked.
  [[nodiscard]] ckpt::ReadSums* read_sums() {
    return config_.checkpoint.verify_on_resume == config::VerifyOnResume::kNone ? nullptr : &read_sums_;
  }

  /// Compares what was read of `checkpoint` with the sums in its manifest.
  void check_sums(const std::filesystem::path& checkpoint, LoadedRun& loaded) {
    const std::vector<std::string> unchecked =
        check_resumed(checkpoint, read_sums_, config_.checkpoint.verify_on_resume, group_);
    if (unchecked.empty()) return;
    loaded.differences.push_back(fmt::format(
        "{} files of the checkpoint are read in part and not compared with their sums, the first is '{}'; "
        "training.checkpoint.verify_on_resume: full reads and compares all of them",
        unchecked.size(), unchecked.front()));
  }

  [[nodiscard]] ckpt::RunState run_state(std::int64_t step, double lr) {
    ckpt::RunState state;
    state.step = step;
    state.optimizer_steps = optimizer_->steps();
    state.parameter_steps = optimizer_->parameter_steps();
    state.without_gradient = optimizer_->unused(/*dampened=*/true);
    state.epoch = batches_.epoch();
    state.lr = lr;
    state.seed = config_.seed;
    state.world_size = group_.size();
    state.skipped_in_a_row = steps_.skipped_in_a_row();
    report_.save(state);
    state.data = batches_.place();
    state.settings = settings_;
    state.power_sgd = power_sgd_state(model_);
    if (plateau_) state.plateau = plateau_->state();
    if (early_stopping_) state.early_stopping = early_stopping_->state();
    for (const auto& [name, value] : evaluation_) {
      if (std::isfinite(value)) state.evaluation.emplace(name, value);
    }
    state.evaluation_is_due = evaluation_is_due_;
    state.frozen_hash = frozen_hash_;
    return state;
  }

  /// Returns false if a signal has asked for the end of the run meanwhile. Then nothing has changed.
  bool evaluate_at(std::int64_t step) {
    std::vector<std::pair<Evaluation, double>> done;
    for (const HeldOutSamples& set : held_out_) {
      const Clock::time_point begin = Clock::now();
      const auto evaluation = evaluate(model_, config_, set.samples, labels_, device_);
      if (!evaluation) return false;
      done.emplace_back(*evaluation, seconds_since(begin));
    }
    for (std::size_t i = 0; i < done.size(); ++i) {
      const auto& [evaluation, seconds] = done[i];
      const std::string& name = held_out_[i].name;
      if (plateau_ && name.empty()) plateau_->update(evaluation.loss);
      evaluation_[evaluation_prefix(name) + "loss"] = evaluation.loss;
      if (evaluation.accuracy) evaluation_[evaluation_prefix(name) + "accuracy"] = *evaluation.accuracy;
      report_.evaluation(step, name, evaluation, seconds);
    }
    if (early_stopping_) early_stopping_->update(evaluation_.at(early_stopping_->metric().key()));
    return true;
  }

  void save(std::int64_t step, const StepResult& result, bool is_last, bool must_succeed) {
    const Clock::time_point begin = Clock::now();
    const flight::Label label("the checkpoint");
    const flight::Scope scope(FlightOp::kHostWork);
    const bool survives = config_.checkpoint.continues_on_failure;
    complete_save(survives);
    const bool this_survives = survives && !must_succeed;
    const bool waits = must_succeed || !config_.checkpoint.asynchronous;
    schedule_.began();
    saving_ = step;
    reporting_failure(this_survives, [&] {
      saver_.begin(
          {run_state(step, result.lr), scaler_, RandomState::now(device_), steps_.next_scale(), is_last},
          this_survives, waits);
    });
    if (waits) complete_save(this_survives);
    report_.pause(seconds_since(begin));
  }

  /// Waits for the save in flight, if there is one.
  void complete_save(bool survives) {
    reporting_failure(survives, [&] { report(saver_.finish()); });
  }

  /// Goes on with the save in flight by the sums of the votes.
  void go_on_with_save(const SaveVotes& sums) {
    const Clock::time_point begin = Clock::now();
    reporting_failure(config_.checkpoint.continues_on_failure, [&] { report(saver_.advance(sums)); });
    report_.worked_for_save(seconds_since(begin));
  }

  void report(const std::optional<SavedCheckpoint>& saved) {
    if (!saved) return;
    flight::set_checkpoint(saving_);
    report_.saved(*saved);
  }

  /// Calls `work`. The error of a save is a warning if the run survives it.
  template <class Work>
  void reporting_failure(bool survives, Work&& work) {
    try {
      work();
    } catch (const SaveFailed& error) {
      if (!survives) throw;
      report_.not_saved(saving_, error);
    }
  }

  Clock::time_point created_ = Clock::now();
  const config::TrainingConfig& config_;
  at::Device device_;
  Group& group_;
  ckpt::RunCheckpoints store_;
  TrainingBatches batches_;
  ckpt::ReadSums read_sums_;  ///< What was read of the checkpoint to go on from.
  OpenedModel opened_;        ///< The constructor moves the file into model_.
  std::uint32_t graph_;       ///< The fingerprint of the model's graph.
  std::map<std::string, std::int64_t> vocabularies_;
  Labels labels_;
  ShardedModel model_;
  std::unique_ptr<Optimizer> optimizer_;
  std::optional<GradScaler> scaler_;  ///< Only float16 has a loss scale.
  std::optional<Plateau> plateau_;    ///< Only a schedule that follows the held-out loss has one.
  std::optional<EarlyStopping> early_stopping_;
  std::map<std::string, double> evaluation_;  ///< The numbers of the evaluation of this step, if it had one.
  bool evaluation_is_due_ = false;            ///< RunState::evaluation_is_due of this step.
  StepRunner steps_;
  CheckpointSaver saver_;
  SaveSchedule schedule_;
  std::int64_t saving_ = 0;  ///< The step of the last save.
  RunReport report_;
  StepProfiler profiler_;
  std::vector<HeldOutSamples> held_out_;
  std::int64_t first_step_ = 1;
  std::optional<std::string> frozen_hash_;       ///< Set if checkpoints will have no frozen parameters.
  std::map<std::string, std::string> settings_;  ///< The result of settings_of().
};

/// Prepares the run's directory on rank 0 before any rank writes into it. No other run uses it, because the
/// launcher holds a lock.
void prepare_output(const config::TrainingConfig& config) {
  if (const std::string token = lock_token(); !token.empty()) ckpt::require_lock(config.output_dir, token);
  make_directories(config.output_dir);
  ckpt::RunCheckpoints(config.output_dir / "checkpoints").sweep();
}

}  // namespace

TrainingEnd train(const config::Config& config, const Rank& rank, at::Device device, Group& group,
                  const std::function<void(const std::function<void()>&)>& guarded) {
  if (!config.training) throw Error(ErrorKind::kUsage, "the configuration has no training section");
  if (group.rank() == 0) prepare_output(*config.training);
  group.barrier();
  // Both are declared outside of the call, so that `guarded` gets an error before they are destroyed.
  std::optional<MeshGroups> groups;
  std::optional<Trainer> trainer;
  TrainingEnd end = TrainingEnd::kFinished;
  guarded([&] {
    groups.emplace(MeshGroups::split(group, config.fsdp));
    at::manual_seed(config.training->seed + static_cast<std::uint64_t>(groups->mean().rank()));
    if (config.training->only_evaluates) return evaluate_only(config, device, group, *groups);
    trainer.emplace(config, device, group, *groups,
                    rank.local_world_size > 0 ? rank.local_world_size : rank.world_size);
    end = trainer->run();
  });
  return end;
}

}  // namespace accel::train
