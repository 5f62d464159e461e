#include "preflight/resumed_data.hpp"

#include <fmt/format.h>

#include <string>

#include "base/error.hpp"

namespace accel {
namespace {

std::string size_text(std::int64_t samples, std::int64_t sequence_length) {
  if (sequence_length == 0) return fmt::format("{} samples of tensors", samples);
  return fmt::format("{} samples of {} tokens", samples, sequence_length);
}

}  // namespace

void require_same_data(const ckpt::DataPlace& place, std::int64_t samples, std::int64_t sequence_length) {
  if (place.samples == samples && place.sequence_length == sequence_length) return;
  throw Error(
      ErrorKind::kUsage,
      fmt::format("training.data.train has {}, but the checkpoint is of a run on {}",
                  size_text(samples, sequence_length), size_text(place.samples, place.sequence_length)))
      .hint("resume with the same data, or start a new run from the checkpoint: training.model.weights");
}

}  // namespace accel
