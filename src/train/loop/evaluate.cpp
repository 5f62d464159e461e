#include "train/loop/evaluate.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <numeric>

#include "base/error.hpp"
#include "base/seconds.hpp"
#include "base/stop_request.hpp"
#include "ranks/collective_order.hpp"
#include "train/c10d/split_sum.hpp"
#include "train/loop/batches.hpp"
#include "train/loop/loss.hpp"
#include "train/loop/model_loss.hpp"
#include "train/loop/step.hpp"

namespace accel::train {

namespace {

at::Tensor sum_of(const at::Tensor& sum, const at::Tensor& summand) {
  return sum.defined() ? sum + summand : summand;
}

/// Lets the ranks agree about once a second whether an evaluation ends.
class StopVotes {
 public:
  explicit StopVotes(Group& group) : group_(group) {}

  /// Call before each round, on all ranks.
  [[nodiscard]] bool ends(std::int64_t round) {
    if (round < next_) return false;
    const Clock::time_point now = Clock::now();
    std::array<double, 2> sums = {stop_requested() ? 1.0 : 0.0, seconds_since(since_)};
    group_.all_reduce_sum(sums);
    since_ = now;
    // All ranks have the same sums, and so the same next round. A GPU is behind its host: its time shows in
    // the next interval.
    const bool is_short = sums[1] < group_.size();
    rounds_ = is_short ? 2 * rounds_ : std::max<std::int64_t>(rounds_ / 2, 1);
    next_ = round + rounds_;
    return sums[0] > 0;
  }

 private:
  using Clock = std::chrono::steady_clock;

  Group& group_;
  std::int64_t next_ = 1;
  std::int64_t rounds_ = 1;  ///< From one vote to the next.
  Clock::time_point since_ = Clock::now();
};

}  // namespace

std::vector<HeldOutSamples> open_held_out(const config::TrainingConfig& config,
                                          const InputDtypes& input_dtypes) {
  std::vector<HeldOutSamples> sets;
  for (const auto& [name, source] : config.data.held_out()) {
    Samples& samples = sets.emplace_back(name, Samples::open(source, config.model)).samples;
    samples.set_input_dtypes(input_dtypes);
    if (samples.source().size() > 0) continue;
    const std::string key = name.empty() ? "" : "_sets." + name;
    throw Error(ErrorKind::kUsage,
                fmt::format("training.data.eval{}: {}", key, samples.source().size_text()));
  }
  return sets;
}

std::optional<Evaluation> evaluate(ShardedModel& model, const config::TrainingConfig& config,
                                   const Samples& data, Labels labels, at::Device device) {
  const DataParallel ranks = model.groups().data();
  Group& world = model.groups().world();
  const at::NoGradGuard no_grad;
  model.set_training(false);
  const std::int64_t all = data.source().size();
  const std::int64_t batch = config.data.batch_size;
  const std::int64_t rounds = (all + batch * ranks.size - 1) / (batch * ranks.size);
  const bool has_classes = config.model.has_classes();
  at::Tensor loss_sum;  // The sums, in float64, are read once, so that the host runs ahead of a GPU.
  at::Tensor weight_sum;
  at::Tensor right_sum;
  at::Tensor nll_sum;
  double seen = 0;
  StopVotes votes(model.groups().world());
  bool stops = false;
  for (std::int64_t round = 0; round < rounds; ++round) {
    // Without a checkpoint to save a signal has ended the process.
    stops = config.checkpoint.enabled() && votes.ends(round);
    if (stops) break;
    const std::int64_t begin = (round * ranks.size + ranks.rank) * batch;
    const std::int64_t count = std::clamp<std::int64_t>(all - begin, 0, batch);
    std::vector<std::int64_t> samples(static_cast<std::size_t>(std::max<std::int64_t>(count, 1)));
    std::iota(samples.begin(), samples.end(), count == 0 ? 0 : begin);
    const Batch inputs = data.batch(samples, labels, device);
    compare_parts(model, config.model, inputs);
    const ModelLoss forward = forward_loss(model, config.model, inputs);
    // A loss without classes, such as a model's own, weighs samples alike.
    const auto weight = static_cast<double>(has_classes ? *inputs.counted : count);
    if (count == 0 || weight == 0) continue;
    at::Tensor loss = forward.loss.to(at::kDouble);
    seen += weight;
    if (!has_classes) {
      loss_sum = sum_of(loss_sum, loss * weight);
      continue;
    }
    // The loss is a mean by class_weights, and not a number where all of them are 0.
    const at::Tensor labels_weight = weight_of_labels(config.model, inputs);
    loss_sum = sum_of(loss_sum, (loss * labels_weight).masked_fill(labels_weight.eq(0), 0));
    weight_sum = sum_of(weight_sum, labels_weight);
    right_sum = sum_of(right_sum, forward.right.to(at::kDouble));
    nll_sum = sum_of(nll_sum, forward.nll.to(at::kDouble) * weight);
  }
  model.set_training(true);
  const double order = model.take_collective_order();
  if (stops) return std::nullopt;
  const auto own = [](const at::Tensor& sum, double otherwise) {
    return sum.defined() ? SplitNumber(sum) : SplitNumber(otherwise);
  };
  // Ranks of tensor parallelism evaluate the same batches. The sums are over them too, so that every rank has
  // the same bits: learning rates and early stopping follow them.
  const std::vector<double> sums =
      sum_over_ranks(std::array<SplitNumber, 7>{own(loss_sum, 0), seen, own(right_sum, 0), order,
                                                order * order, own(weight_sum, seen), own(nll_sum, 0)},
                     world);
  require_one_order(sums[3], sums[4], world.size(), "the evaluation");
  // Without any label that counts they are not numbers, as of a single batch.
  Evaluation result{without_sign_of_nan(sums[0] / sums[5]), std::nullopt, std::nullopt};
  if (!has_classes) return result;
  result.accuracy = sums[2] / sums[1];
  result.perplexity = std::exp(without_sign_of_nan(sums[6] / sums[1]));
  return result;
}

}  // namespace accel::train
