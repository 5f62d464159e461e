#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "ckpt/tensor/dtype.hpp"

namespace accel {

/// How tensors of weights get the names and shapes that the model has.
struct WeightNames {
  /// training.model.rename: patterns and their replacements, which are applied to the names first.
  std::vector<std::pair<std::string, std::string>> rename;
  /// ModelNotes::weight_conversions, which follow if the names are those before such a conversion.
  std::string conversions;
};

/// The Error (kUsage) of a model file without a value for `parameter` where nothing else gives one.
[[nodiscard]] Error error_of_missing_values(const std::string& parameter);

/// The values of a model's parameters and buffers, read range by range, so that no rank needs the whole
/// model.
class WeightSource {
 public:
  WeightSource() = default;
  WeightSource(const WeightSource&) = delete;
  WeightSource& operator=(const WeightSource&) = delete;
  virtual ~WeightSource() = default;

  /// Fills `out` with elements [begin, begin + out.size() / itemsize) of parameter `index` of the structure,
  /// row-major, in the dtype that the structure says.
  virtual void read_parameter(std::size_t index, std::int64_t begin, std::span<std::byte> out) = 0;
  /// Fills `out` with all elements of a buffer in `dtype`. Returns false if the source has no buffer of that
  /// name. Another shape is an Error.
  virtual bool read_buffer(const std::string& name, const std::vector<std::int64_t>& shape, ckpt::DType dtype,
                           std::span<std::byte> out) = 0;
  /// Warnings for the user, complete when everything has been read.
  [[nodiscard]] virtual std::vector<std::string> warnings() const { return {}; }
};

}  // namespace accel
