#pragma once

#include <cstdint>
#include <filesystem>

#include "base/atomic_file.hpp"
#include "base/progress.hpp"
#include "ckpt/merge_plan.hpp"

namespace accel::ckpt {

struct MergeLimits {
  std::uint64_t memory_bytes = std::uint64_t{64}
                               << 20;  ///< What the process may take, nearly; at least kLeastMergeMemory.
};

inline constexpr std::uint64_t kLeastMergeMemory = 16'000'000;

/// Writes the merged file. `directory` is the checkpoint's, to which the plan's files are relative. The
/// target's directory must exist; free space is checked first. The file appears complete or not at all.
void execute_merge(const MergePlan& plan, const std::filesystem::path& directory,
                   const std::filesystem::path& target, AtomicFile::Existing existing,
                   const MergeLimits& limits, Progress& progress);

}  // namespace accel::ckpt
