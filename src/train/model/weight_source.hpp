#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ckpt/tensor/dtype.hpp"
#include "structure/structure.hpp"

namespace accel::train {

class ModelFile;

/// Where a model's values come from: its file, unless one of these is set.
struct WeightOptions {
  std::filesystem::path
      path;  ///< A model or checkpoint of any kind that ckpt reads, or a directory with one.
  std::optional<double> init_std;  ///< Drawn anew, with this standard deviation.
  std::uint64_t seed = 0;          ///< For that.
  bool from_rank_0 = false;        ///< Only rank 0 reads, and scatters to each what is its own.
};

/// The values of a model's parameters and buffers, read range by range, so that nobody needs a whole model.
class WeightSource {
 public:
  WeightSource() = default;
  WeightSource(const WeightSource&) = delete;
  WeightSource& operator=(const WeightSource&) = delete;
  virtual ~WeightSource() = default;

  /// Fills `out` with elements [begin, begin + out.size() / itemsize) of parameter `index` of the structure,
  /// row-major, in the dtype that the structure says.
  virtual void read_parameter(std::size_t index, std::int64_t begin, std::span<std::byte> out) = 0;
  /// Fills `out` with all of a buffer's elements, in `dtype`; false if the source has none of that name.
  /// Another shape is an Error.
  virtual bool read_buffer(const std::string& name, const std::vector<std::int64_t>& shape, ckpt::DType dtype,
                           std::span<std::byte> out) = 0;
  /// After all has been read: what a user should know of it.
  [[nodiscard]] virtual std::vector<std::string> warnings() const { return {}; }
};

/// The source that `options` asks for. `file` and `structure`, which is the file's, must outlive it; unless
/// the values are the file's own, the structure says in which dtypes they are wanted. Throws
/// Error: kUsage if the file has no values and nothing else is asked for, or if tensors are missing or of
/// another shape, with their names; what ckpt::open_checkpoint throws.
std::unique_ptr<WeightSource> open_weights(const ModelFile& file, const ModelStructure& structure,
                                           const WeightOptions& options);

}  // namespace accel::train
