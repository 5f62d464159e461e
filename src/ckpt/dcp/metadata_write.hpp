#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "ckpt/dcp/rank_plan.hpp"
#include "ckpt/io/summed_file.hpp"

namespace accel::ckpt {

/// Writes `.metadata`, atomically and durably, for files that are already complete: one rank only, after all
/// others are done. `plans` are those of every rank. Throws Error (kFailure) if the ranks disagree about a
/// tensor, or if its chunks overlap or leave a hole.
FileSummary write_dcp_metadata(const std::filesystem::path& directory, std::span<const DcpRankPlan> plans);

/// The bytes of `.metadata`; what write_dcp_metadata writes.
[[nodiscard]] std::string encode_dcp_metadata(std::span<const DcpRankPlan> plans);

}  // namespace accel::ckpt
