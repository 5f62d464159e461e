#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace accel {

/// The whole text of a regular file, a pipe (`<(command)`) or a terminal. It waits for the writer of a pipe,
/// until a signal comes (base/interrupt.hpp). A text of more than `limit_bytes` is an Error (kCorrupt), so
/// that reading ends.
[[nodiscard]] std::string read_text_stream(const std::filesystem::path& path, std::uint64_t limit_bytes);

}  // namespace accel
