#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "ckpt/io/read_sums.hpp"
#include "core/config/config.hpp"
#include "train/c10d/group.hpp"
#include "train/fsdp/sharded_model.hpp"
#include "train/model/model_file.hpp"

namespace accel::train {

/// The directory whose manifest has the sums of the files in `weights`: that of a checkpoint or one above its
/// parts. Empty if there is none.
[[nodiscard]] std::filesystem::path directory_with_sums(std::filesystem::path weights);

/// How the model of a run is sharded, and where its values come from. `weights` is where the model's weights
/// are, if they are not in the model file. `sums` gets the sums of what is read of them, or of a checkpoint
/// to go on from, unless it is null.
[[nodiscard]] ShardingOptions sharding_options(const config::Config& config, std::filesystem::path weights,
                                               ckpt::ReadSums* sums);

/// Compares what was read of `weights`, with which a run begins, with the sums in its manifest, if there is
/// one that all ranks see. A rank need not see it if rank 0 reads the weights for all. Rank 0 says which
/// files were read in part alone. Throws what check_resumed() throws. Collective.
void check_sums_of_weights(const config::TrainingConfig& config, const std::filesystem::path& weights,
                           ckpt::ReadSums& sums, Group& group);

/// Returns how many tokens the model knows in each of its inputs, for checks of the data. Inputs of which the
/// model's graph does not show it are left out.
[[nodiscard]] std::map<std::string, std::int64_t> known_tokens(ModelFile& file,
                                                               const config::ModelConfig& config);

}  // namespace accel::train
