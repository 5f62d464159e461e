#include "data/batch_plan.hpp"

#include <algorithm>

#include "base/checked.hpp"

namespace accel {

std::int64_t BatchPlan::steps() const {
  const std::int64_t left = samples - begin;
  if (left <= 0) return 0;
  const std::int64_t per_step = batch_size * data_size;
  return drop_last ? left / per_step : (left + per_step - 1) / per_step;
}

std::int64_t BatchPlan::epoch_samples() const {
  BatchPlan whole = *this;
  whole.begin = 0;
  return whole.steps() * batch_size * data_size;
}

std::int64_t BatchPlan::steps_per_epoch(std::int64_t accumulated) const {
  const std::int64_t micro_batches = epoch_samples() / (batch_size * data_size);
  return (micro_batches + accumulated - 1) / accumulated;
}

std::int64_t BatchPlan::steps_until(std::int64_t epochs, std::int64_t epoch, std::int64_t samples_done,
                                    std::int64_t accumulated) const {
  if (epoch >= epochs) return 0;
  BatchPlan rest = *this;
  rest.begin = samples_done;
  const std::int64_t in_epoch = (rest.steps() + accumulated - 1) / accumulated;
  return checked_add(in_epoch, checked_mul(epochs - epoch - 1, steps_per_epoch(accumulated)));
}

double BatchPlan::epochs(std::int64_t epoch, std::int64_t samples_done) const {
  const double part = static_cast<double>(samples_done) / static_cast<double>(epoch_samples());
  // A run that began the epoch on another number of ranks may drop fewer samples at its end.
  return static_cast<double>(epoch) + std::min(part, 1.0);
}

double BatchPlan::epochs_after(std::int64_t optimizer_steps, std::int64_t accumulated) const {
  const std::int64_t in_epoch = steps_per_epoch(accumulated);
  return epochs(optimizer_steps / in_epoch,
                optimizer_steps % in_epoch * accumulated * batch_size * data_size);
}

std::vector<std::int64_t> BatchPlan::positions(std::int64_t step, int rank) const {
  std::vector<std::int64_t> result(static_cast<std::size_t>(batch_size));
  const std::int64_t first = begin + (step * data_size + rank) * batch_size;
  for (std::int64_t i = 0; i < batch_size; ++i) result[static_cast<std::size_t>(i)] = (first + i) % samples;
  return result;
}

}  // namespace accel
