#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "ckpt/dcp/rank_plan.hpp"
#include "ckpt/io/summed_file.hpp"

namespace accel::ckpt {

/// Writes `.metadata` atomically and durably. One rank calls it, when the files of all ranks are complete.
/// `plans` are the plans of all ranks. Throws Error (kFailure) if the ranks disagree about a tensor, or if
/// its chunks overlap or leave a hole.
FileSummary write_dcp_metadata(const std::filesystem::path& directory, std::span<const DcpRankPlan> plans);

/// The bytes of the `.metadata` that write_dcp_metadata() writes.
[[nodiscard]] std::string encode_dcp_metadata(std::span<const DcpRankPlan> plans);

}  // namespace accel::ckpt
