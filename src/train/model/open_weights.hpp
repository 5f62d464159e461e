#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

#include "ckpt/io/read_sums.hpp"
#include "structure/structure.hpp"
#include "weights/weight_source.hpp"

namespace accel::train {

class ModelFile;

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
  /// The run's checkpoints have no frozen parameters, so `resumed` must not either.
  bool drops_frozen = false;
  /// training.checkpoint.adapter_only wrote `resumed`, whose buffers are elsewhere.
  bool resumes_adapter = false;
};

/// Opens the source that `options` names, for the parts of parameters that the structure says
/// (WeightsOfParts). `file` and its `structure` must outlive it. The structure names the
/// dtypes to read. Throws Error (kUsage) if the
/// values are to come from the file and the file has none, or if tensors are missing or have another shape,
/// with their names; and what ckpt::open_checkpoint() throws.
std::unique_ptr<WeightSource> open_weights(const ModelFile& file, const ModelStructure& structure,
                                           const WeightOptions& options);

}  // namespace accel::train
