#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.hpp"
#include "core/config/resolve/resolve.hpp"

namespace accel::config {
namespace {

constexpr const char* kWayOut = "or set parallelism_config.sp_size: 1";

/// A contradiction between sequence parallelism and the setting `key`, of which `why` goes on the sentence.
[[noreturn]] void fail(const Settings& settings, std::string_view key, const std::string& why,
                       const std::string& hint) {
  throw Error(ErrorKind::kUsage, fmt::format("{}'{}' {}", settings.where(key), key, why))
      .hint(fmt::format("{}; {}", hint, kWayOut));
}

void check_length(const DataSource& source, int parts, const Settings& settings, const std::string& section) {
  if (source.sequence_length % parts != 0) {
    fail(settings, section + ".sequence_length",
         fmt::format("is {}, which is not a multiple of the {} ranks that share a sequence",
                     source.sequence_length, parts),
         "set a length that is a multiple");
  }
  if (source.pad_to_multiple_of % parts != 0) {
    fail(settings, section + ".pad_to_multiple_of",
         fmt::format("is {}, which is not a multiple of the {} ranks that share a sequence",
                     source.pad_to_multiple_of, parts),
         "set a number that is a multiple");
  }
}

}  // namespace

void check_sequence(const Config& config, const Settings& settings) {
  const int parts = config.fsdp.sequence_size;
  if (parts == 1) return;
  const TrainingConfig& training = *config.training;
  const ModelConfig& model = training.model;
  if (model.loss == "model") {
    fail(settings, "training.model.loss",
         "is model, and the mean that a model computes itself would be that of a part of the sequences",
         "use a model that returns logits, with loss: cross_entropy");
  }
  if (std::find(model.inputs.begin(), model.inputs.end(), "position_ids") == model.inputs.end()) {
    fail(settings, "training.model.inputs",
         "has no position_ids, so that each rank would count the positions of its part of a sequence from 0",
         "export the model with accel-export --inputs input_ids,position_ids, and name both here");
  }
  if (!model.metrics.empty()) {
    fail(settings, "training.model.metrics",
         "are scalars that each rank computes of its part of the sequences", "leave them out");
  }
  if (!model.class_weights.empty()) {
    fail(settings, "training.model.class_weights", "is not supported for parts of sequences", "leave it out");
  }
  check_length(training.data.train, parts, settings, "training.data.train");
  if (training.data.eval) check_length(*training.data.eval, parts, settings, "training.data.eval");
}

}  // namespace accel::config
