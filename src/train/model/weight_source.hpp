#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/io/read_sums.hpp"
#include "ckpt/tensor/dtype.hpp"
#include "structure/structure.hpp"

namespace accel::train {

class ModelFile;

/// How tensors of weights get the names and shapes that the model has.
struct WeightNames {
  /// training.model.rename: patterns and their replacements, which are applied to the names first.
  std::vector<std::pair<std::string, std::string>> rename;
  /// ModelNotes::weight_conversions, which follow if the names are those before such a conversion.
  std::string conversions;
};

/// Where a model's values come from: from the model file, unless `path`, `init_std` or `resumed`
/// is set.
struct WeightOptions {
  /// A model or checkpoint of any kind that ckpt reads, or a directory with one.
  std::filesystem::path path;
  ckpt::ReadSums* path_sums = nullptr;  ///< Gets the sums of what is read of `path`, unless it is null.
  WeightNames names;                    ///< How the tensors of `path` get the names of the model.
  std::optional<double> init_std;       ///< Draw random values with this standard deviation.
  std::uint64_t seed = 0;               ///< Seed of the random values.
  bool from_rank_0 = false;             ///< Only rank 0 reads, and scatters the shards.
  /// The model of a checkpoint to go on from, which precedes all others. Frozen parameters that it does not
  /// have come from where they would come from without it, and then so do buffers. Otherwise a buffer that it
  /// does not have is an Error.
  std::filesystem::path resumed;
  ckpt::ReadSums* resumed_sums = nullptr;  ///< Gets the sums of what is read of `resumed`, unless it is null.
  bool drops_frozen =
      false;  ///< The run's checkpoints have no frozen parameters, so `resumed` must not either.
  bool resumes_adapter =
      false;  ///< training.checkpoint.adapter_only wrote `resumed`, whose buffers are elsewhere.
};

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

/// Opens the source that `options` names. `file` and its `structure` must outlive it. The structure names the
/// dtypes to read. Throws Error (kUsage) if the
/// values are to come from the file and the file has none, or if tensors are missing or have another shape,
/// with their names; and what ckpt::open_checkpoint() throws.
std::unique_ptr<WeightSource> open_weights(const ModelFile& file, const ModelStructure& structure,
                                           const WeightOptions& options);

}  // namespace accel::train
