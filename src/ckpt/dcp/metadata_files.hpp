#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "ckpt/dcp/metadata.hpp"

namespace accel::ckpt {

/// Whether a directory is a DCP checkpoint: it contains `.metadata`, or `__{rank}.metadata`, which every rank
/// writes if it saves on its own (`use_collectives=False`).
[[nodiscard]] bool has_dcp_metadata(const std::filesystem::path& directory);

/// The names of the files that describe the checkpoint in `directory`: `.metadata` alone if it exists, else
/// those of the ranks.
[[nodiscard]] std::vector<std::string> dcp_metadata_names(const std::filesystem::path& directory);

/// Reads one file with parse_dcp_metadata(). Throws Error as that does.
[[nodiscard]] DcpMetadata parse_dcp_metadata_file(const std::filesystem::path& path);

/// The contents of `.metadata` if it exists, as in torch; else those of the files of all ranks, merged.
/// Throws Error: kMissing if there is no such file, or none of a rank that has written data or that comes
/// before another one; kCorrupt if files contradict themselves or each other.
[[nodiscard]] DcpMetadata read_dcp_metadata(const std::filesystem::path& directory);

/// Told of an entry about which ranks disagree: its name, and a text that goes on behind the name.
using RankDisagreement = std::function<void(const std::string& fqn, const std::string& text)>;

/// Merges the metadata of single ranks, in the order of the ranks, into one checkpoint. An entry that several
/// ranks have is taken from the first of them; the chunks of the others are DcpTensor::copies. (In torch each
/// rank reads its own file.) If ranks disagree about a dtype, a shape, or what is a tensor, `on_disagreement`
/// is called for each entry of which they do, and the entry of the later rank is dropped; without it that
/// is an Error (kCorrupt).
[[nodiscard]] DcpMetadata merge_rank_metadata(std::vector<DcpMetadata> ranks,
                                              const RankDisagreement& on_disagreement = {});

/// Throws Error (kMissing) if `directory` was saved by ranks that each wrote their own metadata, and the
/// metadata of a rank is missing that has written data or comes before another one.
void check_rank_metadata_complete(const std::filesystem::path& directory);

}  // namespace accel::ckpt
