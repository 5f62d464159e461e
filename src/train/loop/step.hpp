#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/error.hpp"
#include "core/config/config.hpp"
#include "plan/schedule/grad_scaler.hpp"
#include "plan/schedule/plateau.hpp"
#include "train/fsdp/sharded_model.hpp"
#include "train/loop/batches.hpp"
#include "train/optim/optimizer.hpp"

namespace accel::train {

/// Numbers in the all-reduce of a step: those of one rank, or their sums over all ranks.
using Votes = std::array<double, 3>;

/// Where the time of a step went on this rank's host, in seconds. The host runs ahead of a GPU in forward and
/// backward, and waits for it in `reduce_s`. Collectives of units belong to forward and backward.
struct StepTimes {
  double data_s = 0;  ///< Until the reading thread had the next micro-batch.
  double forward_s = 0;
  double backward_s = 0;
  double reduce_s = 0;     ///< The norm of the gradient, and the all-reduce of loss and norm.
  double optimizer_s = 0;  ///< Clipping and the update.
};

/// What one optimizer step yields. Every rank has the same values, except for the times.
struct StepResult {
  double loss = 0;       ///< The mean over the micro-batches of all data ranks that count; NaN if none does.
  double grad_norm = 0;  ///< The global norm before clipping.
  double lr = 0;
  /// The loss or a gradient was infinite or NaN, or no label counted, so the optimizer changed nothing.
  bool skipped = false;
  std::int64_t micro_batches = 0;  ///< The micro-batches of all data ranks.
  std::int64_t uncounted = 0;      ///< Those of them that have labels of which none counts.
  /// The factor from the mean of what the micro-batches have contributed to loss and gradient of the step.
  double weight = 1;
  bool stop = false;           ///< A signal has asked a rank to stop after this step.
  Votes votes = {};            ///< The sums over the ranks.
  std::optional<Error> error;  ///< Why the run cannot go on: the loss or a gradient is infinite or NaN.
  std::int64_t tokens = 0;     ///< Tokens of the step on all data ranks, without padding.
  std::int64_t samples = 0;    ///< Samples of the step on all data ranks.
  /// The scalars of ModelConfig::metrics, the means over the micro-batches of all data ranks.
  std::vector<double> metrics;
  StepTimes times;
};

/// Executes optimizer steps: the micro-batches, one all-reduce for the loss and the gradient norm, clipping,
/// the loss scale, and the update or its omission.
///
/// It refers to the parts of a run and owns none of them.
class StepRunner {
 public:
  StepRunner(const config::TrainingConfig& config, TrainingBatches& batches, ShardedModel& model,
             Optimizer& optimizer, std::optional<GradScaler>& scaler, const Plateau* plateau = nullptr)
      : config_(config),
        batches_(batches),
        model_(model),
        optimizer_(optimizer),
        scaler_(scaler),
        plateau_(plateau),
        compares_labels_(config.model.has_classes()),
        by_tokens_(compares_labels_ && config.loss_mean == "tokens") {}

  /// Runs step number `step`, counted from 1, with this rank's `votes`. Collective. A loss or gradient that
  /// is infinite or NaN yields an Error of kind kFailure in the result unless training.skip_nonfinite or the
  /// loss scale allows the step to be skipped.
  ///
  /// A micro-batch whose loss compares with no label has no weight: loss and gradient are the means over the
  /// other micro-batches of all ranks, or with training.loss_mean: tokens over all labels that count. A step
  /// without any other is skipped.
  ///
  /// In the first steps whole parameters of tensor parallelism must have equal gradients on its ranks
  /// (require_equal_along_tp()).
  StepResult run(std::int64_t step, const Votes& votes);

  /// The factor of the learning rates in the next step.
  [[nodiscard]] double next_scale() const;
  /// The last steps that were skipped one after another, for a checkpoint.
  [[nodiscard]] std::int64_t skipped_in_a_row() const { return skipped_in_a_row_; }
  void set_skipped_in_a_row(std::int64_t steps) { skipped_in_a_row_ = steps; }

 private:
  /// Losses and counts of this rank's micro-batches.
  struct MicroBatches {
    at::Tensor loss_sum;     ///< The sum over those that count, a float64 scalar on the device of the loss.
    at::Tensor metric_sums;  ///< The sums of the metrics, [n] of float64; undefined without metrics.
    std::int64_t count = 0;
    std::int64_t uncounted = 0;  ///< Those that have labels of which none counts.
    double labels = 0;           ///< The labels that count.
    /// By how much the losses are divided with training.loss_mean: tokens, the same on all ranks.
    double divisor = 1;
    std::int64_t tokens = 0;  ///< Their tokens, without padding.
    std::int64_t samples = 0;
    std::vector<std::vector<std::int64_t>> numbers;  ///< Batch::numbers of each.
  };

  MicroBatches forward_and_backward(StepResult& result);
  /// Fills in the loss, the norm and the counts, and returns which parameters have a gradient on any rank.
  GradientPresence reduce(const MicroBatches& micro_batches, std::int64_t step, const Votes& votes,
                          StepResult& result);
  /// Whether no micro-batch of any rank counts.
  [[nodiscard]] bool is_empty(const StepResult& result) const {
    return compares_labels_ && result.uncounted == result.micro_batches;
  }
  /// Returns the factor from means over all micro-batches to means over the micro-batches that count.
  [[nodiscard]] double weight_of_counted(const StepResult& result) const;
  /// The loss of a micro-batch, as backward gets it but for the number of micro-batches.
  [[nodiscard]] at::Tensor contribution_of(const at::Tensor& loss, const Batch& batch,
                                           MicroBatches& done) const;
  void update(std::int64_t step, const MicroBatches& micro_batches, const GradientPresence& presence,
              StepResult& result);
  void backward(const at::Tensor& loss) const;
  /// Returns the error of a step with an infinity or a NaN, unless the step may be skipped. It names the
  /// cause. Collective.
  [[nodiscard]] std::optional<Error> report_nonfinite(std::int64_t step, const MicroBatches& micro_batches,
                                                      const StepResult& result) const;

  const config::TrainingConfig& config_;
  TrainingBatches& batches_;
  ShardedModel& model_;
  Optimizer& optimizer_;
  std::optional<GradScaler>& scaler_;  ///< Only float16 has a loss scale.
  const Plateau* plateau_;             ///< Null if the learning rate follows the step.
  bool compares_labels_;  ///< A model that computes its loss itself weighs its micro-batches alike.
  bool by_tokens_;        ///< training.loss_mean is tokens.
  std::int64_t skipped_in_a_row_ = 0;
  int compared_ = 0;  ///< The steps whose gradients were compared along tp.
};

/// The absolute value of a NaN, and any other value as it is: the sign of a NaN depends on the processor, and
/// would be printed.
[[nodiscard]] double without_sign_of_nan(double value);

}  // namespace accel::train
