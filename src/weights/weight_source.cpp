#include "weights/weight_source.hpp"

#include <fmt/format.h>

namespace accel {

Error error_of_missing_values(const std::string& parameter) {
  return Error(ErrorKind::kUsage, fmt::format("the model file has no values for '{}'", parameter))
      .hint(
          "set training.model.weights to a checkpoint or safetensors file to read them from, or "
          "training.model.init.std to draw random values");
}

}  // namespace accel
