#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "ckpt/io/read_sums.hpp"
#include "core/config/config.hpp"
#include "train/c10d/group.hpp"

namespace accel::train {

/// Compares the files of the checkpoint `directory` with the sums of its manifest. `sums` has what this rank
/// has read of them. What the ranks have read together is not read again; what lies between, such as the
/// headers of records, is. With VerifyOnResume::kAuto a file of which more than that is unread is left out,
/// with kFull the rest of it is read.
///
/// Throws Error (kCorrupt) on every rank if a file is not the one that was saved. Returns the files of which
/// a part was read and that were left out, the same on every rank. Collective.
std::vector<std::string> check_resumed(const std::filesystem::path& directory, ckpt::ReadSums& sums,
                                       config::VerifyOnResume mode, Group& group);

}  // namespace accel::train
