#pragma once

#include <filesystem>
#include <functional>
#include <string_view>
#include <vector>

#include "base/files/atomic_file.hpp"
#include "base/progress.hpp"
#include "ckpt/plan/output_plan.hpp"
#include "ckpt/read/checkpoint.hpp"
#include "ckpt/write/write_file.hpp"

namespace accel::ckpt {

/// Where the files of a plan go.
struct OutputTarget {
  std::filesystem::path path;  ///< The path of a directory, or of the file itself.
  bool is_file = false;        ///< If true, the plan must have one file, whose name is not used.
  AtomicFile::Existing existing = AtomicFile::Existing::kRefuse;
  /// Whether a name in the directory is a file of an earlier output; see StagedDirectory.
  std::function<bool(std::string_view name)> belongs = {};
  /// Files that are copied into the directory with the output.
  std::vector<std::filesystem::path> assets = {};
};

/// Throws Error (kFailure) if something exists already that may not be replaced. A command calls this before
/// it reads much. Leftovers of dead processes are removed first and do not count.
void check_target(const OutputPlan& plan, const OutputTarget& target);

/// Writes all files of the plan to the target, durably, and all of them or none. Checks the free space first,
/// and creates the directories above the target. Throws Error (kUsage) if a file of `source` would be
/// replaced.
void write_output(Checkpoint& source, const OutputPlan& plan, const OutputTarget& target,
                  const WriteLimits& limits, Progress& progress);

}  // namespace accel::ckpt
