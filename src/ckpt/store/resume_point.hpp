#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/store/run_checkpoints.hpp"

namespace accel::ckpt {

/// Why a run cannot go on from the checkpoint `directory` of `step`, or nullopt if it is whole: its manifest
/// is there and of that step, as is the state of the run, and each file that it lists is there with its size.
/// Files without the values of tensors, such as `.metadata`, have the contents that were saved. Of the others
/// nothing is read. An error of the system is thrown, because it says nothing about the checkpoint, and so is
/// an Error (kUsage) for a file that is not read within metadata_limit().
[[nodiscard]] std::optional<std::string> why_not_whole(const std::filesystem::path& directory,
                                                       std::int64_t step);

/// Reads all files of a checkpoint that is whole, and calls `before_file` before each of them. Returns which
/// one does not have the contents that were saved, or nullopt. An error of the system is thrown.
[[nodiscard]] std::optional<std::string> why_damaged(
    const std::filesystem::path& directory, const std::function<void()>& before_file = [] {});

/// A checkpoint of a run that is not whole.
struct BrokenCheckpoint {
  std::int64_t step = 0;
  std::string why;
};

/// The checkpoint to go on from, and the newer ones that are not whole.
struct ResumePoint {
  std::optional<std::int64_t> step;       ///< The newest whole checkpoint, if there is one.
  std::vector<BrokenCheckpoint> skipped;  ///< The newest comes first.
};

/// Looks at the checkpoints of steps below `below`.
[[nodiscard]] ResumePoint newest_whole(const RunCheckpoints& checkpoints,
                                       std::int64_t below = std::numeric_limits<std::int64_t>::max());

}  // namespace accel::ckpt
