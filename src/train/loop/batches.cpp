#include "train/loop/batches.hpp"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <fmt/format.h>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/log.hpp"
#include "data/needed_fields.hpp"
#include "data/sample_order.hpp"
#include "preflight/model_inputs.hpp"
#include "preflight/resumed_data.hpp"
#include "structure/model_notes.hpp"
#include "train/loop/cross_entropy.hpp"

namespace accel::train {

namespace {

/// How many micro-batches are read before they are used.
constexpr std::size_t kReadAhead = 2;

at::Tensor classes_without_weight(const config::ModelConfig& model) {
  return at::tensor(model.class_weights).eq(0).nonzero().flatten();
}

/// Whether one of the labels that count is of a class that weighs something.
bool has_weight(const config::ModelConfig& model, const at::Tensor& targets) {
  const at::Tensor weightless = classes_without_weight(model);
  if (weightless.numel() == 0) return true;
  return at::isin(targets.to(at::kLong), weightless)
      .logical_not_()
      .logical_and_(counted_targets(targets))
      .any()
      .item<bool>();
}

}  // namespace

std::string_view uncounted_labels(const config::ModelConfig& model) {
  return classes_without_weight(model).numel() == 0 ? "all are -100"
                                                    : "all are -100 or of classes whose weight is 0";
}

Labels labels_for(const config::ModelConfig& config, const std::string& accel_json) {
  const ModelNotes notes = parse_notes(accel_json);
  require_inputs(config, notes.inputs);
  return labels_for(config, notes);
}

TrainingBatches::TrainingBatches(const config::DataConfig& config, const config::ModelConfig& model,
                                 std::uint64_t seed, const DataParallel& ranks, at::Device device)
    : config_(config),
      model_(model),
      data_(Samples::open(config.train, model)),
      seed_(seed),
      rank_(ranks.rank),
      device_(device),
      at_{plan_epoch(data_.source(), config, ranks.size)} {}

Batch TrainingBatches::next() {
  if (!reader_) {
    reader_.emplace(kReadAhead, [this, at = at_]() mutable {
      ReadBatch read = read_behind(at);
      at = read.after;
      return read;
    });
  }
  const ReadBatch read = reader_->take();
  at_ = read.after;
  Batch batch = data_.to_device(read.fields, device_);
  batch.tokens = data_.tokens_of(read.samples).value_or(batch.tokens);
  batch.numbers = read.samples;
  if (!model_.has_classes()) return batch;
  if (!has_weight(model_, batch.host_targets)) {
    const auto ignored = [](const at::Tensor& targets) {
      return at::full(targets.sizes(), kIgnoredTarget, targets.options().dtype(at::kLong));
    };
    for (auto& [name, tensor] : batch.fields) {
      if (name == model_.targets) tensor = ignored(tensor);
    }
    batch.host_targets = ignored(batch.host_targets);
    batch.counted = 0;
  }
  if (batch.counted == 0) warn_of_uncounted(read.samples);
  return batch;
}

TrainingBatches::ReadBatch TrainingBatches::read_behind(Progress at) const {
  // A new thread works with GPU 0, on which each rank would get a context when it allocates pinned memory.
  const c10::OptionalDeviceGuard guard(device_.is_cpu() ? std::nullopt : std::optional(device_));
  if (at.is_end_of_epoch()) {
    ++at.epoch;
    at.step = 0;
    at.plan.begin = 0;
  }
  const SampleOrder order(at.plan.samples, config_.shuffle, seed_, at.epoch);
  std::vector<std::int64_t> samples = at.plan.positions(at.step++, rank_);
  for (std::int64_t& sample : samples) sample = order.at(sample);
  std::vector<at::Tensor> fields = data_.read(samples, labels_, device_);
  return {std::move(samples), std::move(fields), at};
}

void TrainingBatches::warn_of_uncounted(const std::vector<std::int64_t>& samples) {
  ++uncounted_;
  std::int64_t power = 1;
  while (power < uncounted_) power *= 10;
  if (power != uncounted_) return;
  const std::string how_many =
      uncounted_ == 1 ? "" : fmt::format("; {} micro-batches of this rank were so", uncounted_);
  log::warn(fmt::format(
      "{}: no label of the {} samples of this micro-batch counts, {}; its step is the mean over "
      "the other micro-batches{}",
      data_.source().position(samples.front()), samples.size(), uncounted_labels(model_), how_many));
}

double TrainingBatches::epoch() const { return at_.plan.epochs(at_.epoch, place().samples_done); }

std::int64_t TrainingBatches::samples_trained() const {
  const ckpt::DataPlace place = this->place();
  return checked_add(checked_mul(place.epoch, at_.plan.epoch_samples()), place.samples_done);
}

ckpt::DataPlace TrainingBatches::place() const {
  return {at_.epoch, at_.plan.begin + at_.step * samples_per_step(), at_.plan.samples,
          data_.source().sequence_length(), config_.shuffle};
}

void TrainingBatches::go_to(const ckpt::DataPlace& place) {
  require_same_data(place, at_.plan.samples, data_.source().sequence_length());
  reader_.reset();
  at_.epoch = place.epoch;
  at_.plan.begin = place.samples_done;
  at_.step = 0;
}

ckpt::DataPlace TrainingBatches::place_after(std::int64_t steps, std::int64_t micro_batches) const {
  ckpt::DataPlace place = this->place();
  const std::int64_t steps_per_epoch = at_.plan.steps_per_epoch(micro_batches);
  place.epoch = steps / steps_per_epoch;
  place.samples_done = steps % steps_per_epoch * micro_batches * samples_per_step();
  return place;
}

std::int64_t TrainingBatches::samples_per_step() const { return at_.plan.batch_size * at_.plan.data_size; }

}  // namespace accel::train
