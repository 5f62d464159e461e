#pragma once

#include <filesystem>
#include <functional>
#include <string_view>
#include <vector>

#include "base/atomic_file.hpp"
#include "base/progress.hpp"
#include "ckpt/plan/output_plan.hpp"
#include "ckpt/read/checkpoint.hpp"
#include "ckpt/write/write_file.hpp"

namespace accel::ckpt {

/// Where a plan's files go.
struct OutputTarget {
  std::filesystem::path path;  ///< A directory, or the file itself.
  bool is_file = false;        ///< Then the plan has one file, and its name is not used.
  AtomicFile::Existing existing = AtomicFile::Existing::kRefuse;
  /// Whether a name in the directory is a file of an earlier output, see StagedDirectory.
  std::function<bool(std::string_view name)> belongs = {};
  std::vector<std::filesystem::path> assets =
      {};  ///< Files that are copied into the directory with the output.
};

/// Throws Error (kFailure) if something is there already that may not be replaced: before much is read. What
/// dead processes left of an earlier attempt is removed first, and does not count.
void check_target(const OutputPlan& plan, const OutputTarget& target);

/// Writes all files of the plan and brings them to the target, durable, all or none. Makes the directories
/// above it; free space is checked first. Throws Error (kUsage) if a file of the checkpoint would be
/// replaced.
void write_output(Checkpoint& source, const OutputPlan& plan, const OutputTarget& target,
                  const WriteLimits& limits, Progress& progress);

}  // namespace accel::ckpt
