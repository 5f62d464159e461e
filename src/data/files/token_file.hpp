#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

namespace accel {

/// How a file of training data stores its tokens: little-endian integers behind a header.
struct TokenEncoding {
  std::size_t header_bytes = 0;
  unsigned token_bytes = 1;
  bool is_signed = false;  ///< The integers are int32 or int64, of which not every value is a token.
};

/// Throws Error (kUsage) for a file whose name says that it has records, such as .jsonl: its bytes are not
/// what a model of bytes is to learn.
void require_text_name(const std::filesystem::path& path);

/// Returns the encoding of the file `path`, whose content is `bytes`.
///
/// With `format` "text", each byte is a token. `format` "tokens" without `dtype` reads NumPy's `.npy` (one
/// dimension of uint16, uint32, int32 or int64) or llm.c's token file (a header of 1024 bytes; magic 20240520
/// with version 1 is uint16, magic 20240801 with version 7 is uint32). With `dtype` "uint16" or "uint32" the
/// file holds tokens without a header.
///
/// A file must have the format that its name or its first bytes claim. A file that claims a format which is
/// not asked for, or whose header does not fit its size, is an Error of kind kUsage.
TokenEncoding token_encoding(const std::string& format, const std::string& dtype,
                             const std::filesystem::path& path, std::span<const std::byte> bytes);

}  // namespace accel
