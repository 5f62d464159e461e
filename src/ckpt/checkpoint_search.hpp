#pragma once

#include <filesystem>
#include <vector>

#include "ckpt/checkpoint_kind.hpp"

namespace accel::ckpt {

enum class Want { kModel, kOptimizer, kAny };

/// The one checkpoint that `path` is, or that the directory `path` holds: itself, or down to three levels
/// below. Of a set of rank files it is the first one's path. What is called `optimizer*` is an optimizer;
/// Accelerate's files of schedulers, samplers and the like count only if nothing else is there; a model in
/// safetensors goes before the same one in `.bin`. Directories called `*.incomplete` and `*.deleting` are
/// never entered. Throws Error: kMissing if nothing is there or a save did not finish; kUsage if several are,
/// with their names.
[[nodiscard]] std::filesystem::path find_checkpoint(const std::filesystem::path& path, Want want);

/// All that find_checkpoint would choose from in a directory, sorted; of any kind.
[[nodiscard]] std::vector<std::filesystem::path> list_checkpoints(const std::filesystem::path& directory);

}  // namespace accel::ckpt
