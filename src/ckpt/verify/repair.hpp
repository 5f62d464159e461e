#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "base/progress.hpp"
#include "ckpt/dcp/rank_plan.hpp"
#include "ckpt/verify/finding.hpp"

namespace accel::ckpt {

/// What the item records in the data files of a DCP directory say.
struct RepairScan {
  std::vector<DcpRankPlan> plans;  ///< One plan per rank, for write_dcp_metadata. Every object is None.
  std::vector<Finding> findings;   ///< The findings, sorted. If there are any, `.metadata` cannot be rebuilt.
  std::size_t tensors = 0;
  std::size_t objects = 0;
  std::uint64_t bytes = 0;  ///< The size of the data files.
};

struct RepairOptions {
  unsigned threads = 0;  ///< The number of threads; 0 stands for default_threads().
  Progress::Mode progress = Progress::Mode::kOff;
};

/// Reads all data files of a checkpoint that accel wrote, with or without its `.metadata`, and writes
/// nothing. It checks every record, archive and checksum; that the manifest in the directory above, if there
/// is one, lists these files; that no rank's file is missing; and that the chunks of each tensor cover it.
[[nodiscard]] RepairScan scan_for_repair(const std::filesystem::path& directory,
                                         const RepairOptions& options);

/// Finds the directories with data files whose `.metadata` is missing or cannot be read: `path` itself, or
/// directories down to three levels below it, sorted. It does not enter unfinished saves and what is left
/// over (read/folders.hpp). With `force` it also finds those whose `.metadata` is sound. Throws Error:
/// kMissing if no directory has data files, kFailure if none needs repair.
[[nodiscard]] std::vector<std::filesystem::path> find_repairable(const std::filesystem::path& path,
                                                                 bool force);

}  // namespace accel::ckpt
