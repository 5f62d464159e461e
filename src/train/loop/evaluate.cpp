#include "train/loop/evaluate.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "ranks/collective_order.hpp"
#include "train/device/read_numbers.hpp"
#include "train/loop/batches.hpp"
#include "train/loop/loss.hpp"

namespace accel::train {

double evaluate(ShardedModel& model, const config::TrainingConfig& config, const Samples& data, Labels labels,
                at::Device device) {
  const DataParallel ranks = model.groups().data();
  const at::NoGradGuard no_grad;
  model.set_training(false);
  const std::int64_t all = data.source().size();
  const std::int64_t batch = config.data.batch_size;
  const std::int64_t rounds = (all + batch * ranks.size - 1) / (batch * ranks.size);
  const bool is_own_loss = config.model.loss == "model";
  at::Tensor loss_sum;  // The sum, in float64, is read once, so that the host runs ahead of a GPU.
  double seen = 0;
  for (std::int64_t round = 0; round < rounds; ++round) {
    const std::int64_t begin = (round * ranks.size + ranks.rank) * batch;
    const std::int64_t count = std::clamp<std::int64_t>(all - begin, 0, batch);
    std::vector<std::int64_t> samples(static_cast<std::size_t>(std::max<std::int64_t>(count, 1)));
    std::iota(samples.begin(), samples.end(), count == 0 ? 0 : begin);
    const Batch inputs = data.batch(samples, labels, device);
    const c10::IValue result = model.forward(inputs_of(config.model, inputs));
    // A model's own loss does not say how many labels it counts.
    const auto weight = static_cast<double>(is_own_loss ? count : *inputs.counted);
    if (count == 0 || weight == 0) continue;
    const at::Tensor loss = loss_of(config.model, result, inputs).to(at::kDouble) * weight;
    loss_sum = loss_sum.defined() ? loss_sum + loss : loss;
    seen += weight;
  }
  model.set_training(true);
  const double order = model.take_collective_order();
  const double own_loss = loss_sum.defined() ? read_numbers(std::array{loss_sum}).front() : 0;
  std::array<double, 4> sums = {own_loss, seen, order, order * order};
  ranks.group.all_reduce_sum(sums);
  require_one_order(sums[2], sums[3], ranks.size, "the evaluation");
  // Without any label that counts it is not a number, as of a single batch.
  return sums[0] / sums[1];
}

}  // namespace accel::train
