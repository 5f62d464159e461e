#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/io/read_sums.hpp"
#include "train/optim/optimizer.hpp"

namespace accel::train {

/// What load_optimizer() has read.
struct LoadedOptimizer {
  std::int64_t steps = 0;            ///< The steps of the optimizer.
  std::int64_t parameter_steps = 0;  ///< The steps of the parameter that has the most.
  std::vector<std::string> without;  ///< The parameters that have no state in the checkpoint.
};

/// Restores the state of `optimizer` from the checkpoint at `path`, which is one of an optimizer, or holds
/// one beside the weights (ckpt::optimizer_layout()), in the form of torch's get_optimizer_state_dict. Each
/// rank reads the bytes of its `shard` alone, and notes them in `sums` unless that is null. `steps` is the
/// number of steps of the optimizer; without it, it is that of the parameter that has the most. Throws Error:
/// kMissing, kCorrupt, or kUsage if the checkpoint is of another model.
LoadedOptimizer load_optimizer(const std::filesystem::path& path, std::optional<std::int64_t> steps,
                               Optimizer& optimizer, int shard, ckpt::ReadSums* sums = nullptr);

}  // namespace accel::train
