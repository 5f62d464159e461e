#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "base/progress.hpp"
#include "ckpt/dcp/rank_plan.hpp"
#include "ckpt/verify/finding.hpp"

namespace accel::ckpt {

/// What the data files of a DCP directory say of themselves, by the record in front of each item.
struct RepairScan {
  std::vector<DcpRankPlan> plans;  ///< By rank; what write_dcp_metadata needs. Objects are not read: None.
  std::vector<Finding> findings;   ///< Sorted. With any, `.metadata` cannot be rebuilt.
  std::size_t tensors = 0;
  std::size_t objects = 0;
  std::uint64_t bytes = 0;  ///< Of the data files.
};

struct RepairOptions {
  unsigned threads = 0;  ///< 0: default_threads().
  Progress::Mode progress = Progress::Mode::kOff;
};

/// Reads all data files of a checkpoint that accel wrote, with or without its `.metadata`: checks every
/// record, archive and checksum, that the manifest above, if there is one, lists these very files, that no
/// rank's file is missing, and that the chunks of each tensor cover it. Writes nothing.
[[nodiscard]] RepairScan scan_for_repair(const std::filesystem::path& directory,
                                         const RepairOptions& options);

/// The directories that have data files but no `.metadata` which can be read: `path` itself, or those in it,
/// down to three levels, but for saves that have not finished; sorted. With `force` also those whose
/// `.metadata` is sound. Throws Error: kMissing if no directory has data files, kFailure if none needs
/// repair.
[[nodiscard]] std::vector<std::filesystem::path> find_repairable(const std::filesystem::path& path,
                                                                 bool force);

}  // namespace accel::ckpt
