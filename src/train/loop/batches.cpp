#include "train/loop/batches.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "base/error.hpp"
#include "data/sample_order.hpp"
#include "structure/model_notes.hpp"

namespace accel::train {

namespace {

/// Names that models of transformers give to inputs with a meaning of its own.
bool has_meaning(const std::string& name) {
  constexpr auto kNames = std::to_array<std::string_view>(
      {"input_ids", "labels", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds",
       "decoder_input_ids", "decoder_attention_mask", "decoder_inputs_embeds", "encoder_outputs",
       "past_key_values", "cache_position", "pixel_values", "pixel_mask", "input_values", "input_features"});
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

/// Throws if an input of forward whose meaning its name tells would get another field of the data.
void check_meanings(const config::ModelConfig& config, const std::vector<std::string>& inputs) {
  for (std::size_t i = 0; i < std::min(inputs.size(), config.inputs.size()); ++i) {
    if (inputs[i] == config.inputs[i] || !has_meaning(inputs[i])) continue;
    throw Error(ErrorKind::kUsage,
                fmt::format("training.model.inputs gives '{}' to the input '{}' of forward, which takes [{}]",
                            config.inputs[i], inputs[i], fmt::join(inputs, ", ")))
        .hint(
            "text and tokens data have the fields input_ids and labels; export the model without the others");
  }
}

void check_input_order(const config::ModelConfig& config, const std::vector<std::string>& inputs) {
  if (inputs == config.inputs ||
      !std::is_permutation(inputs.begin(), inputs.end(), config.inputs.begin(), config.inputs.end()))
    return;
  throw Error(ErrorKind::kUsage, fmt::format("training.model.inputs are [{}], but forward takes [{}]",
                                             fmt::join(config.inputs, ", "), fmt::join(inputs, ", ")))
      .hint("give them in the order of forward");
}

}  // namespace

const at::Tensor& Batch::field(const std::string& name) const {
  if (name == "input_ids") return input_ids;
  if (name == "labels") return labels;
  throw Error(ErrorKind::kUsage, fmt::format("the data has no field '{}'", name))
      .hint("text and tokens data have the fields input_ids and labels");
}

Labels labels_for(const config::ModelConfig& config, const std::string& accel_json) {
  const ModelNotes notes = parse_notes(accel_json);
  check_input_order(config, notes.inputs);
  check_meanings(config, notes.inputs);
  const bool shifts = config.loss == "model" && notes.shifts_labels;
  return shifts ? Labels::kInputs : Labels::kNextTokens;
}

Batch make_batch(const TokenStream& stream, std::int64_t length, const std::vector<std::int64_t>& samples,
                 Labels labels, at::Device device) {
  const auto rows = static_cast<std::int64_t>(samples.size());
  // One copy moves inputs and labels to the device. It is from pinned memory, which libtorch does not use
  // again before the copy is done, so that the host does not wait.
  const auto options = at::TensorOptions().dtype(at::kLong).pinned_memory(device.is_cuda());
  const at::Tensor windows = at::empty({rows, length + 1}, options);
  auto* data = windows.mutable_data_ptr<std::int64_t>();
  for (std::int64_t row = 0; row < rows; ++row) {
    stream.read(samples[static_cast<std::size_t>(row)] * length,
                {data + row * (length + 1), static_cast<std::size_t>(length + 1)});
  }
  const at::Tensor there = windows.to(device, /*non_blocking=*/true);
  // The two share no memory: a model may change its labels in place.
  const auto part = [&](std::int64_t begin) {
    return there.narrow(1, begin, length).clone(at::MemoryFormat::Contiguous);
  };
  return {part(0), part(labels == Labels::kInputs ? 0 : 1)};
}

TrainingBatches::TrainingBatches(const config::DataConfig& config, std::uint64_t seed, int rank,
                                 int world_size, at::Device device)
    : config_(config),
      stream_(TokenStream::open(config.train)),
      plan_{stream_.windows(config.train.sequence_length), config.batch_size, world_size, config.drop_last},
      seed_(seed),
      rank_(rank),
      device_(device) {
  if (plan_.steps() > 0) return;
  throw Error(
      ErrorKind::kUsage,
      fmt::format("training.data.train: {} tokens make {} samples of {}, but a step of {} processes with "
                  "batch_size {} needs {}",
                  stream_.size(), plan_.samples, config.train.sequence_length, world_size, config.batch_size,
                  config.batch_size * world_size))
      .hint("use more data, a smaller batch or sequence, or drop_last: false");
}

Batch TrainingBatches::next() {
  if (last_of_epoch()) {
    ++epoch_;
    step_ = 0;
    plan_.begin = 0;
  }
  const SampleOrder order(plan_.samples, config_.shuffle, seed_, epoch_);
  std::vector<std::int64_t> samples = plan_.positions(step_++, rank_);
  for (std::int64_t& sample : samples) sample = order.at(sample);
  return make_batch(stream_, config_.train.sequence_length, samples, labels_, device_);
}

double TrainingBatches::epoch() const {
  BatchPlan whole = plan_;
  whole.begin = 0;
  const std::int64_t of_epoch = whole.steps() * samples_per_step();
  const double part = static_cast<double>(place().samples_done) / static_cast<double>(of_epoch);
  // A run that began the epoch on another number of ranks may drop fewer samples at its end.
  return static_cast<double>(epoch_) + std::min(part, 1.0);
}

ckpt::DataPlace TrainingBatches::place() const {
  return {epoch_, plan_.begin + step_ * samples_per_step(), plan_.samples, config_.train.sequence_length,
          config_.shuffle};
}

void TrainingBatches::go_to(const ckpt::DataPlace& place) {
  if (place.samples != plan_.samples || place.sequence_length != config_.train.sequence_length) {
    throw Error(
        ErrorKind::kUsage,
        fmt::format("training.data.train has {} samples of {} tokens, but the checkpoint is of a run on "
                    "{} samples of {}",
                    plan_.samples, config_.train.sequence_length, place.samples, place.sequence_length))
        .hint("resume with the same data, or start a new run from the checkpoint: training.model.weights");
  }
  epoch_ = place.epoch;
  plan_.begin = place.samples_done;
  step_ = 0;
}

ckpt::DataPlace TrainingBatches::place_after(std::int64_t steps, std::int64_t micro_batches) const {
  ckpt::DataPlace place = this->place();
  const std::int64_t steps_per_epoch = (plan_.steps() + micro_batches - 1) / micro_batches;
  place.epoch = steps / steps_per_epoch;
  place.samples_done = steps % steps_per_epoch * micro_batches * samples_per_step();
  return place;
}

std::int64_t TrainingBatches::samples_per_step() const { return plan_.batch_size * plan_.world_size; }

}  // namespace accel::train
