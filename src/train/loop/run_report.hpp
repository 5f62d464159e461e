#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "ckpt/store/run_state.hpp"
#include "core/config/config.hpp"
#include "plan/schedule/early_stopping.hpp"
#include "plan/schedule/grad_scaler.hpp"
#include "report/metric_sink.hpp"
#include "train/checkpoint/save.hpp"
#include "train/fsdp/sharded_model.hpp"
#include "train/loop/evaluate.hpp"
#include "train/loop/step.hpp"
#include "train/optim/optimizer.hpp"

namespace accel::train {

/// Gives what happens in a run to the log and to the metric sinks. All ranks call the same functions, but
/// only rank 0 writes.
class RunReport {
 public:
  RunReport(const config::Config& config, int rank, at::Device device);

  /// Writes a line to the log alone.
  void say(const std::string& text) const;
  /// Reports the size of the model and of each rank's part, and what is offloaded.
  void model(const ShardedModel& model) const;
  /// Reports the units that never ran and the trainable parameters that never had a gradient. A run in which
  /// no step changed a weight is a warning.
  void end_of_run(const ShardedModel& model, const Optimizer& optimizer) const;

  /// Reports the checkpoint that the run goes on from, and how long it took to open the model and to read it.
  void resumed(const std::filesystem::path& checkpoint, const ckpt::RunState& state, double seconds);
  /// Starts to count time. `done` steps were done before, in earlier runs. Opening the model and reading the
  /// checkpoint took `seconds`.
  void start(std::int64_t done, double seconds);
  /// Ends the metric sinks, after the last record. May wait so long for a command that gets the metrics.
  void close(std::chrono::seconds patience);
  /// Stores the samples of the run, and what the steps since the last line have been, for a run that goes on
  /// from the checkpoint.
  void save(ckpt::RunState& state) const;
  /// Counts a step. Writes a line after every training.log_every steps and after the last step, with the mean
  /// of the finite losses since the line before.
  void step(std::int64_t step, const StepResult& result, double epoch,
            const std::optional<GradScaler>& scaler);
  /// Writes the line of `step` that ends the run early, unless step() has written it. Call before save().
  void last_step(std::int64_t step, const StepResult& result, const std::optional<GradScaler>& scaler);
  /// Reports an evaluation of a set of held-out data (config::HeldOutData::name) that took `seconds`. These
  /// do not count as time of a step.
  void evaluation(std::int64_t step, const std::string& set, const Evaluation& evaluation, double seconds);
  /// Reports that the run has ended after `step` by `rule`, which is reached.
  void stopped_early(std::int64_t step, const EarlyStopping& rule);
  /// Reports a checkpoint that is complete.
  void saved(const SavedCheckpoint& checkpoint);
  /// Reports a checkpoint that could not be saved, as a warning.
  void not_saved(std::int64_t step, const Error& error);
  /// The training has waited for `seconds` between two steps, for a checkpoint. These do not count as time of
  /// a step.
  void pause(double seconds) {
    pause_s_ += seconds;
    save_s_ += seconds;
  }
  /// Work for the save in flight has taken `seconds` of a step.
  void worked_for_save(double seconds) { save_s_ += seconds; }
  /// Reports how much the run has trained on, and where the time of this rank's host went since the launch or
  /// restart, after step `step`.
  void time_spent(std::int64_t step);

 private:
  using Clock = std::chrono::steady_clock;

  /// Writes a record, with the time of day and the attempt of the run.
  void write(Metrics metrics) const;
  /// Writes the line of a step, and begins to count for the next line.
  void end_interval(std::int64_t step, const StepResult& result, const std::optional<GradScaler>& scaler);
  void write_step(std::int64_t step, const StepResult& result, const std::optional<GradScaler>& scaler);
  void offload() const;

  const config::TrainingConfig& config_;
  const config::FsdpConfig& fsdp_;
  int rank_;
  at::Device device_;
  std::vector<std::unique_ptr<MetricSink>> sinks_;  ///< Empty on every rank but rank 0.

  double start_s_ = 0;           ///< Seconds before the first step.
  double eval_s_ = 0;            ///< Seconds of evaluations.
  double save_s_ = 0;            ///< Seconds that the training has waited for checkpoints or worked for them.
  StepTimes times_;              ///< The sums over the steps.
  Clock::time_point begun_;      ///< When the first step began.
  Clock::time_point since_log_;  ///< When the last line of a step was written.
  std::int64_t attempt_;      ///< The N of logs/attempt_N: launches and restarts of the run before this one.
  double pause_s_ = 0;        ///< Seconds of evaluations and saves since that line.
  std::int64_t tokens_ = 0;   ///< Tokens of all ranks since that line.
  std::int64_t samples_ = 0;  ///< Samples of all ranks since that line.
  std::int64_t skipped_ = 0;  ///< Steps that were skipped since that line.
  double loss_sum_ = 0;       ///< The sum of the finite losses since that line.
  std::int64_t steps_ = 0;    ///< Their number, with those of an earlier attempt.
  /// Those of the model's metrics since that line, by name, with those of an earlier attempt.
  std::map<std::string, ckpt::SumOfSteps> metric_sums_;
  std::int64_t logged_step_ = 0;
  std::int64_t samples_trained_ = 0;  ///< Samples of all ranks since the beginning of the run.
  double epoch_ = 0;                  ///< The epochs that are done.
};

}  // namespace accel::train
