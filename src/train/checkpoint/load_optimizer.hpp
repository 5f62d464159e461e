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

/// The numbers of steps that a checkpoint says beside the optimizer's state.
struct KnownSteps {
  /// Those of the optimizer; without it, those of the parameter that has the most.
  std::optional<std::int64_t> optimizer;
  /// Those of each parameter with state whose optimizer does not count steps, such as torch.optim.SGD.
  std::int64_t uncounted = 1;
  /// Those of them that have done no step, by name.
  std::vector<std::string> without_gradient;
};

/// Restores the state of `optimizer` from checkpoints of optimizers, or from one that holds the state beside
/// the weights (ckpt::optimizer_layout()), in the form of torch's get_optimizer_state_dict. There is one for
/// each of used_optimizers() or one for all. Each rank reads the bytes of its `shard` alone, and notes them
/// in `sums` unless that is null. Throws Error: kMissing, kCorrupt, or kUsage if the checkpoint is of another
/// model.
LoadedOptimizer load_optimizer(const std::vector<std::filesystem::path>& paths, const KnownSteps& known,
                               Optimizer& optimizer, int shard, ckpt::ReadSums* sums = nullptr);

}  // namespace accel::train
