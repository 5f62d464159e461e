#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "ckpt/read/kind.hpp"

namespace accel::ckpt {

enum class Want { kModel, kOptimizer, kAny };

/// What find_checkpoint chose.
struct FoundCheckpoint {
  std::filesystem::path path;
  /// Other checkpoints that would have fitted: the caller says that they were not taken. Sorted.
  std::vector<std::filesystem::path> passed_over;
};

/// Something that looks like a checkpoint and cannot be one: a directory of data files without `.metadata`,
/// an empty `pytorch_model_fsdp_0`, `checkpoint_5.incomplete`, some of several shards, a link to nothing.
struct DamagedCheckpoint {
  std::filesystem::path path;
  std::string why;  ///< "has .distcp files but no .metadata".
};

/// What a directory holds, down to three levels below it; both sorted by path.
struct CheckpointList {
  std::vector<std::filesystem::path> checkpoints;
  std::vector<DamagedCheckpoint> damaged;
};

/// The one checkpoint that `path` is, or that the directory `path` holds: itself, or down to three levels
/// below. Of a set of rank files it is the first one's path. What is called `optimizer*` is an optimizer and
/// never stands for a model; Accelerate's files of schedulers, samplers and the like count only under kAny,
/// if nothing else is there. A model in the directory itself goes before those below it, and safetensors go
/// before the same model in `.bin`: these are in passed_over.
///
/// Directories called `*.incomplete` and `*.deleting` are never entered, and those that must not be read are
/// passed over unless they are called as a checkpoint. Throws Error: kMissing if nothing is there, or if
/// anything in the directory is damaged or incomplete, with its name; kUsage if several checkpoints are
/// there, with their names.
[[nodiscard]] FoundCheckpoint find_checkpoint(const std::filesystem::path& path, Want want);

/// Everything that find_checkpoint would choose from in a directory, of any kind, and what is damaged.
[[nodiscard]] CheckpointList list_checkpoints(const std::filesystem::path& directory);

/// "'x/checkpoint_5' has .distcp files but no .metadata; 'x/checkpoint_6.incomplete' is ...".
[[nodiscard]] std::string to_string(const std::vector<DamagedCheckpoint>& damaged);

}  // namespace accel::ckpt
