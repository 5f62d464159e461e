#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/config/config.hpp"
#include "data/batch_plan.hpp"
#include "data/sample_source.hpp"

namespace accel {

/// Throws Error (kUsage) that data with the fields `fields` have no field `name`.
[[noreturn]] void fail_without_field(const std::string& name, const std::vector<std::string>& fields);

/// The numbers of the fields that a training of `model` takes, sorted by name: its inputs, and the targets if
/// the loss compares with them. Throws Error (kUsage) if the data lack one of them, or if it has a dtype that
/// no model takes.
[[nodiscard]] std::vector<std::size_t> needed_fields(const SampleSource& source,
                                                     const config::ModelConfig& model);

/// The micro-batches of the first epoch of a training. Throws Error (kUsage) if the samples are too few for
/// one of each data rank.
[[nodiscard]] BatchPlan plan_epoch(const SampleSource& source, const config::DataConfig& config,
                                   int data_size);

}  // namespace accel
