#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace accel {

/// All of a text that may come from anywhere: a regular file, a pipe (`<(command)`), a terminal. Whoever
/// writes the other end is waited for, until a signal comes (base/interrupt.hpp). A text of more than
/// `limit_bytes` is an Error (kCorrupt), so that an endless one ends.
[[nodiscard]] std::string read_text_stream(const std::filesystem::path& path, std::uint64_t limit_bytes);

}  // namespace accel
