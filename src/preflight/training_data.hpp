#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/formats/sample_source.hpp"
#include "plan/parameter_groups.hpp"

namespace accel {

/// What a training takes of its data, and what is odd about its model.
struct TrainingData {
  std::int64_t samples = 0;          ///< The number of samples in the data.
  std::int64_t steps_per_epoch = 0;  ///< Optimizer steps.
  std::int64_t steps = 0;            ///< The last step of a run from the beginning.
  double epochs = 0;                 ///< The epochs of these steps.
  /// Set if training.model.uint8_divisor is: the fields that it divides.
  std::optional<std::vector<std::string>> divided_fields;
  std::vector<MixedSource> mixed;              ///< SampleSource::mixed()
  std::vector<ParameterGroupInfo> groups;      ///< parameter_groups() of the model; empty without its file.
  std::vector<std::string> warnings;           ///< What no rank says again.
  std::vector<std::string> warnings_of_ranks;  ///< What the ranks say, too.
  /// TensorPlan::summary() of the model, which says what tensor parallelism cuts; empty without it.
  std::string tensor_summary;
};

}  // namespace accel
