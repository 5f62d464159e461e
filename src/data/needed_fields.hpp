#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "ckpt/tensor/dtype.hpp"
#include "core/config/config.hpp"
#include "data/batch_plan.hpp"
#include "data/formats/sample_source.hpp"

namespace accel {

/// Throws Error (kUsage) that data with the fields `fields` have no field `name`.
[[noreturn]] void fail_without_field(const std::string& name, const std::vector<std::string>& fields);

/// Throws Error (kUsage) if the targets of a loss with classes are said of tokens (is_beside_tokens()), or
/// the tokens that the model gets.
void require_targets(const config::ModelConfig& model);

/// The numbers of the fields that a training of `model` takes, sorted by name: its inputs, and the targets if
/// the loss compares with them. Throws Error (kUsage) if the data lack one of them, or if it has a dtype that
/// no model takes.
[[nodiscard]] std::vector<std::size_t> needed_fields(const SampleSource& source,
                                                     const config::ModelConfig& model);

/// The dtypes of a program's inputs, by the fields that they get, as far as they are known.
using InputDtypes = std::map<std::string, ckpt::DType>;

/// Whether the model gets the field divided by training.model.uint8_divisor. Fields of uint8 are, except the
/// targets and those for inputs that are known to be integers or booleans, such as tokens and masks.
[[nodiscard]] bool is_divided(const SampleField& field, const config::ModelConfig& model,
                              const InputDtypes& inputs);

/// The names of the fields for which is_divided() says yes, among those that the model takes.
[[nodiscard]] std::vector<std::string> divided_fields(const SampleSource& source,
                                                      const config::ModelConfig& model,
                                                      const InputDtypes& inputs);

/// Says that training.model.uint8_divisor divides these fields.
[[nodiscard]] std::string division_text(const std::vector<std::string>& fields);

/// The micro-batches of the first epoch of a training. Throws Error (kUsage) if the samples are too few for
/// one of each data rank.
[[nodiscard]] BatchPlan plan_epoch(const SampleSource& source, const config::DataConfig& config,
                                   int data_size);

}  // namespace accel
