#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "ckpt/io/summed_file.hpp"

namespace accel::train {

/// Throws Error (kFailure) if the file system of `directory` says that less than `bytes` are left. A
/// checkpoint of that size would fail after it has been written in part.
void require_space(const std::filesystem::path& directory, std::uint64_t bytes);

/// Reads the file `name` of `directory`, and returns its size and its CRC-32.
[[nodiscard]] ckpt::FileSummary summary_of(const std::filesystem::path& directory, const std::string& name);

/// Reads `file` of `directory` again, from the disk and not from the page cache, and throws Error (kCorrupt)
/// if its size or its CRC-32, which was computed from memory when it was written, differs. The file must be
/// synced.
void require_same_on_disk(const std::filesystem::path& directory, const ckpt::FileSummary& file);

}  // namespace accel::train
