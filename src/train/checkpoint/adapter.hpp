#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/config/config.hpp"
#include "train/fsdp/sharded_model.hpp"

namespace accel::train {

/// Throws Error (kUsage) unless every trained parameter has one of `names`, parts of names, in its name, and
/// has a name of its own in PEFT's files.
void require_adapter(const ShardedModel& model, const std::vector<std::string>& names);

/// The files that belong beside the exported weights of `checkpoint`: the configuration of the model, or that
/// of the adapter, which the checkpoint has from the notes of the model file, or which lies beside that file.
[[nodiscard]] std::vector<std::filesystem::path> assets_of(const config::TrainingConfig& config,
                                                           const std::filesystem::path& checkpoint);

}  // namespace accel::train
