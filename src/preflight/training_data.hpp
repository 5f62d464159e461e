#pragma once

#include <cstdint>

namespace accel {

/// What a training takes of its data.
struct TrainingData {
  std::int64_t samples = 0;          ///< The number of samples in the data.
  std::int64_t steps_per_epoch = 0;  ///< Optimizer steps.
  double epochs = 0;                 ///< The epochs of training.max_steps from the beginning.
};

}  // namespace accel
