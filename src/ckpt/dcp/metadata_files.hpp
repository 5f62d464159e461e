#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "ckpt/dcp/metadata.hpp"

namespace accel::ckpt {

/// Whether a directory is a DCP checkpoint: it holds `.metadata`, or `__{rank}.metadata`, which every rank
/// writes by itself if it saves without the others (`use_collectives=False`).
[[nodiscard]] bool has_dcp_metadata(const std::filesystem::path& directory);

/// The names of the files that describe the checkpoint in `directory`: `.metadata`, which counts alone if it
/// is there, or those of the ranks.
[[nodiscard]] std::vector<std::string> dcp_metadata_names(const std::filesystem::path& directory);

/// parse_dcp_metadata of one file.
[[nodiscard]] DcpMetadata parse_dcp_metadata_file(const std::filesystem::path& path);

/// What `.metadata` says, which counts if it is there, as for torch; else what the files of all ranks say
/// together. Throws Error: kMissing if there is none, or not the file of a rank that has written data or that
/// comes before another; kCorrupt if one contradicts itself, or another.
[[nodiscard]] DcpMetadata read_dcp_metadata(const std::filesystem::path& directory);

/// One checkpoint from what every rank, in their order, says of its own part. What several ranks hold, torch
/// reads on each from its own file; here the first of them has it, and the others are copies. Throws Error
/// (kCorrupt) if ranks disagree about a dtype, a shape, or what is a tensor.
[[nodiscard]] DcpMetadata merge_rank_metadata(std::vector<DcpMetadata> ranks);

}  // namespace accel::ckpt
