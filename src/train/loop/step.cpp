#include "train/loop/step.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/files/flight_record.hpp"
#include "base/log.hpp"
#include "base/stop_request.hpp"
#include "plan/schedule/learning_rate.hpp"
#include "ranks/collective_order.hpp"
#include "train/c10d/split_sum.hpp"
#include "train/loop/model_loss.hpp"
#include "train/loop/nonfinite.hpp"
#include "train/optim/clip.hpp"
#include "train/optim/equal_along_tp.hpp"

namespace accel::train {
namespace {

/// The number of steps that may be skipped one after another. If the weights are NaN, every later step is.
constexpr std::int64_t kMostSkipped = 100;
/// How many steps of a process compare gradients along tp, for which the host waits.
constexpr int kCompared = 2;

/// How a communication hook makes a finite gradient infinite or NaN, for a hint.
std::string hook_hint(const config::DdpConfig& ddp) {
  using config::CommHookType;
  if (ddp.comm_hook == CommHookType::kFp16 || ddp.comm_wrapper == CommHookType::kFp16)
    return "training.ddp casts gradients to float16, whose largest value is 65504; bf16 has a larger range; ";
  if (ddp.comm_hook == CommHookType::kPowerSgd && ddp.power_sgd.orthogonalization_epsilon == 0) {
    return "a parameter whose gradient is all 0 needs "
           "training.ddp.comm_state_option.orthogonalization_epsilon; ";
  }
  return "";
}

/// Measures the parts of a step one after another.
class Laps {
 public:
  /// Adds the seconds since the last call, or since the construction, to `part`.
  void add_to(double& part) {
    const auto now = std::chrono::steady_clock::now();
    part += std::chrono::duration<double>(now - last_).count();
    last_ = now;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace

double without_sign_of_nan(double value) { return std::isnan(value) ? std::abs(value) : value; }

StepResult StepRunner::run(std::int64_t step, const Votes& votes) {
  StepResult result;
  const MicroBatches micro_batches = forward_and_backward(result);
  Laps laps;
  const GradientPresence presence = reduce(micro_batches, step, votes, result);
  // Loss and norm are the same on all ranks, so all of them compare, or none.
  if (compared_ < kCompared && std::isfinite(result.loss) && std::isfinite(result.grad_norm)) {
    require_equal_along_tp(model_.trainable_buffers(), model_.groups());
    ++compared_;
  }
  laps.add_to(result.times.reduce_s);
  update(step, micro_batches, presence, result);
  laps.add_to(result.times.optimizer_s);
  return result;
}

StepRunner::MicroBatches StepRunner::forward_and_backward(StepResult& result) {
  const std::int64_t most = config_.gradient_accumulation_steps;
  MicroBatches done;
  Laps laps;
  // The last step of an epoch may have fewer micro-batches.
  for (bool reduce = false; !reduce;) {
    const Batch batch = batches_.next();
    laps.add_to(result.times.data_s);
    reduce = ++done.count == most || batches_.last_of_epoch();
    compare_parts(model_, config_.model, batch);
    model_.begin_micro_batch(reduce);
    const ModelLoss forward = forward_loss(model_, config_.model, batch);
    const at::Tensor loss = contribution_of(forward.loss, batch, done);
    laps.add_to(result.times.forward_s);
    // Where no label counts, cross_entropy is NaN and its gradient is 0, as in torch.
    backward(most == 1 ? loss : loss / static_cast<double>(most));
    model_.finish_backward();
    const bool is_uncounted = batch.counted == 0;
    done.uncounted += is_uncounted ? 1 : 0;
    // The sum stays on the device, so that the host does not wait for each micro-batch.
    at::Tensor value = loss.detach().to(at::kDouble);
    if (is_uncounted && compares_labels_) value = at::zeros_like(value);
    done.loss_sum = done.loss_sum.defined() ? done.loss_sum + value : value;
    if (forward.metrics.defined())
      done.metric_sums = done.metric_sums.defined() ? done.metric_sums + forward.metrics : forward.metrics;
    done.tokens += batch.tokens;
    done.samples += batch.samples();
    done.numbers.push_back(batch.numbers);
    laps.add_to(result.times.backward_s);
  }
  return done;
}

at::Tensor StepRunner::contribution_of(const at::Tensor& loss, const Batch& batch, MicroBatches& done) const {
  if (!by_tokens_) return loss;
  // The number of labels that all ranks count is known after backward. Until then losses are sums, divided by
  // what is the same in all micro-batches, so that they are as large as means in 16 bits.
  // Micro-batches that are padded to their longest document differ in their sizes.
  const config::DataSource& source = config_.data.train;
  const std::int64_t of_sample = source.pad_to_multiple_of > 0
                                     ? source.sequence_length
                                     : batch.field(config_.model.targets).numel() / batch.samples();
  const auto labels = static_cast<double>(*batch.counted);
  done.divisor = static_cast<double>(of_sample) * static_cast<double>(config_.data.batch_size);
  done.labels += labels;
  return loss * (labels / done.divisor);
}

void StepRunner::backward(const at::Tensor& loss) const {
  const flight::Scope scope(FlightOp::kBackward);
  // The scale is multiplied in float32: a model's own loss may be float16, which cannot hold 65536.
  (scaler_ ? loss.to(at::kFloat) * scaler_->scale() : loss).backward();
}

GradientPresence StepRunner::reduce(const MicroBatches& micro_batches, std::int64_t step, const Votes& votes,
                                    StepResult& result) {
  const std::vector<FlatBuffer*> buffers = model_.trainable_buffers();
  const Mesh& mesh = model_.groups().mesh();
  Group& world = model_.groups().world();
  const double order = model_.take_collective_order();
  GradientPresence presence = gradient_presence(buffers);
  std::vector<SplitNumber> own = {micro_batches.loss_sum / static_cast<double>(micro_batches.count),
                                  gradient_square_sum(buffers, mesh),
                                  order,
                                  order * order,
                                  static_cast<double>(count_missing(presence)),
                                  stop_requested() ? 1.0 : 0.0,
                                  votes[0],
                                  votes[1],
                                  votes[2],
                                  static_cast<double>(micro_batches.uncounted),
                                  static_cast<double>(micro_batches.tokens),
                                  micro_batches.labels};
  const std::size_t metrics = config_.model.metrics.size();
  if (metrics > 0) {
    for (const at::Tensor& sum : micro_batches.metric_sums.unbind()) own.emplace_back(sum);
  }
  // The host waits for the device once, and the ranks all-reduce once, for all numbers of the step.
  const std::vector<double> sums = sum_over_ranks(own, world);
  require_one_order(sums[2], sums[3], world.size(), fmt::format("step {}", step));
  result.stop = sums[5] > 0;
  result.votes = {sums[6], sums[7], sums[8]};
  if (sums[4] > 0) presence = on_any_rank(std::move(presence), world);
  // All data ranks have as many micro-batches and samples. Each batch is that of `copies` ranks, and all of
  // them add to the sums.
  const int copies = mesh.size() / mesh.data_size();
  result.micro_batches = micro_batches.count * mesh.data_size();
  result.uncounted = static_cast<std::int64_t>(sums[9]) / copies;
  result.tokens = static_cast<std::int64_t>(sums[10]) / copies;
  result.samples = micro_batches.samples * mesh.data_size();
  for (const double sum : std::span(sums).last(metrics))
    result.metrics.push_back(sum / copies / static_cast<double>(result.micro_batches));
  const double mean = sums[0] / copies / mesh.data_size();
  double loss_weight = 1;
  if (by_tokens_ && !is_empty(result)) {
    // Each of the losses counts as one of `most` micro-batches, also in the shorter last step of an epoch.
    const double parts = micro_batches.divisor * mesh.data_size() * copies / sums[11];
    loss_weight = parts * static_cast<double>(micro_batches.count);
    result.weight = parts * static_cast<double>(config_.gradient_accumulation_steps);
  } else {
    loss_weight = result.weight = weight_of_counted(result);
  }
  result.loss =
      without_sign_of_nan(is_empty(result) ? std::numeric_limits<double>::quiet_NaN() : mean * loss_weight);
  // Every replica adds the same squares. The sum is over all ranks nevertheless, so that every rank has the
  // same bits and clips by the same factor.
  const double unscale = scaler_ ? scaler_->inverse() : 1;
  result.grad_norm = without_sign_of_nan(std::sqrt(sums[1] / mesh.replicas()) * unscale * result.weight);
  return presence;
}

double StepRunner::weight_of_counted(const StepResult& result) const {
  if (!compares_labels_ || is_empty(result)) return 1;
  return static_cast<double>(result.micro_batches) /
         static_cast<double>(result.micro_batches - result.uncounted);
}

void StepRunner::update(std::int64_t step, const MicroBatches& micro_batches,
                        const GradientPresence& presence, StepResult& result) {
  // The loss and the norm are the same on all ranks, so all ranks skip the step, or none.
  const bool finite_loss = std::isfinite(result.loss);
  result.skipped = !finite_loss || !std::isfinite(result.grad_norm);
  const bool overflowed = scaler_ && finite_loss && result.skipped;
  if (result.skipped && !overflowed) result.error = report_nonfinite(step, micro_batches, result);
  if (result.error) return;
  if (!overflowed) skipped_in_a_row_ = result.skipped ? skipped_in_a_row_ + 1 : 0;
  result.lr = config_.optimizer.lr * next_scale();
  if (!result.skipped) {
    const double unscale = scaler_ ? scaler_->inverse() : 1;
    const double clip = config_.max_grad_norm ? clip_factor(result.grad_norm, *config_.max_grad_norm) : 1;
    scale_gradients(model_.trainable_buffers(), unscale * result.weight * clip);
    const flight::Scope scope(FlightOp::kOptimizer);
    optimizer_.step(next_scale(), presence);
  } else {
    model_.reset_hook_state();
  }
  model_.clear_gradients();
  // A NaN loss does not show that the scale is too large.
  if (!scaler_ || !finite_loss) return;
  try {
    scaler_->update(overflowed, step);
  } catch (const Error& error) {
    result.error = error;
  }
}

double StepRunner::next_scale() const {
  if (plateau_ != nullptr) return plateau_->scale();
  const std::int64_t total =
      config_.lr_scheduler.total_steps > 0 ? config_.lr_scheduler.total_steps : config_.max_steps;
  return lr_factor(config_.lr_scheduler, optimizer_.steps(), total, config_.optimizer.lr);
}

std::optional<Error> StepRunner::report_nonfinite(std::int64_t step, const MicroBatches& micro_batches,
                                                  const StepResult& result) const {
  std::string what =
      fmt::format("step {}: the loss is {} and the gradient norm is {}", step, result.loss, result.grad_norm);
  if (result.uncounted > 0) {
    what += fmt::format("; in {} of its {} micro-batches no label counts, {}", result.uncounted,
                        result.micro_batches, uncounted_labels(config_.model));
  }
  const bool is_skipped = config_.skip_nonfinite || is_empty(result);
  const bool ends = !is_skipped || skipped_in_a_row_ >= kMostSkipped;
  NonfiniteCause cause{"", "do the training data have labels?"};
  if (!is_empty(result)) {
    cause = find_nonfinite(model_, config_.model, batches_, micro_batches.numbers, std::isfinite(result.loss),
                           ends);
    if (!cause.what.empty()) what += "; " + cause.what;
  }
  if (!ends) {
    if (model_.groups().world().rank() == 0) log::warn(what + "; no weight is changed");
    return std::nullopt;
  }
  if (is_skipped) {
    return Error(ErrorKind::kDiverged,
                 fmt::format("{}, as in the {} steps before, which were skipped", what, kMostSkipped))
        .hint(cause.advice);
  }
  return Error(ErrorKind::kDiverged, what)
      .hint(fmt::format("{}{}; training.skip_nonfinite: true skips such steps", hook_hint(config_.ddp),
                        cause.advice));
}

}  // namespace accel::train
