#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>

#include "ckpt/dcp/rank_plan.hpp"
#include "ckpt/io/summed_file.hpp"

namespace accel::ckpt {

/// Gives the next of the row-major, contiguous, little-endian bytes of plan.items[index]. It is called for
/// each tensor in order, until it has given all payload_bytes, and never for objects. The bytes must stay
/// valid until the next call.
using PayloadSource = std::function<std::span<const std::byte>(std::size_t index)>;

/// Writes the rank's file into `directory`, which must exist, and syncs it. Throws Error if the file exists.
/// If it throws another Error, the file is removed.
FileSummary write_dcp_rank(const std::filesystem::path& directory, const DcpRankPlan& plan,
                           const PayloadSource& payload);

}  // namespace accel::ckpt
