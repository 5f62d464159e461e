#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "data/files/token_file.hpp"

namespace accel {

/// Returns the `.bin` file with the tokens of the index `path`, which lies beside it. Throws Error (kUsage)
/// if the name of the index does not end in `.idx`.
[[nodiscard]] std::filesystem::path megatron_tokens_path(const std::filesystem::path& path);

/// Returns how the `.bin` file of `tokens_bytes` bytes stores its tokens, as `index` says: the content of the
/// `.idx` file that Megatron-LM writes beside it (megatron/core/datasets/indexed_dataset.py; docs/formats.md
/// has the layout).
///
/// The sequences of the index must lie in the file one after the other, without hole or rest, as Megatron-LM
/// writes them. The file is then a stream of tokens. An index that says anything else, or that is truncated,
/// is an Error of kind kUsage.
[[nodiscard]] TokenEncoding megatron_encoding(std::span<const std::byte> index, std::uint64_t tokens_bytes);

}  // namespace accel
