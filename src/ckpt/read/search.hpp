#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "ckpt/read/kind.hpp"

namespace accel::ckpt {

enum class Want { kModel, kOptimizer, kAny };

/// The checkpoint that find_checkpoint chose.
struct FoundCheckpoint {
  std::filesystem::path path;
  /// Other checkpoints that would have fitted, sorted. The caller reports that they were not taken.
  std::vector<std::filesystem::path> passed_over;
};

/// A path that looks like a checkpoint but cannot be opened as one: a directory of data files without
/// `.metadata`, an empty `pytorch_model_fsdp_0`, `checkpoint_5.incomplete`, a set that lacks shards, a link
/// to nothing.
struct DamagedCheckpoint {
  std::filesystem::path path;
  std::string why;  ///< The reason, such as "has .distcp files but no .metadata".
};

/// The checkpoints that a directory holds, down to three levels below it. Both lists are sorted by path.
struct CheckpointList {
  std::vector<std::filesystem::path> checkpoints;
  std::vector<DamagedCheckpoint> damaged;
};

/// Finds the one checkpoint that `path` is, or that the directory `path` holds, down to three levels below
/// it. For a set of rank files, the result is the path of the lowest rank's file.
///
/// What is named `optimizer*` is an optimizer and is never taken for a model. Accelerate's files of
/// schedulers, samplers and the like count only under kAny, if nothing else is there. A model in the
/// directory itself is preferred to those below it, and safetensors to the same model in `.bin`; the others
/// are in passed_over.
///
/// Unfinished saves and what is left over (read/folders.hpp) are never entered. Directories without
/// permission to read are passed over unless they are named like a checkpoint. Throws Error: kMissing, with
/// the name, if nothing is there or if anything in the directory is damaged or incomplete; kUsage, with the
/// names, if several checkpoints are there.
[[nodiscard]] FoundCheckpoint find_checkpoint(const std::filesystem::path& path, Want want);

/// Lists all checkpoints of any kind that find_checkpoint would choose from in a directory, and what is
/// damaged.
[[nodiscard]] CheckpointList list_checkpoints(const std::filesystem::path& directory);

/// Returns a text such as "'x/checkpoint_5' has .distcp files but no .metadata; 'x/checkpoint_6.incomplete'
/// is ...".
[[nodiscard]] std::string to_string(const std::vector<DamagedCheckpoint>& damaged);

}  // namespace accel::ckpt
