#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace accel {

/// Reads out.size() little-endian integers of 1, 2, 4 or 8 bytes. Those of 8 bytes are signed.
inline void read_integers(const std::byte* from, std::size_t item_bytes, bool is_signed,
                          std::span<std::int64_t> out) {
  const auto copy = [&](auto integer) {
    for (std::size_t i = 0; i < out.size(); ++i) {
      std::memcpy(&integer, from + i * sizeof integer, sizeof integer);
      out[i] = integer;  // NOLINT(bugprone-signed-char-misuse): The sign is meant.
    }
  };
  switch (item_bytes) {
    case 1:
      return is_signed ? copy(std::int8_t{}) : copy(std::uint8_t{});
    case 2:
      return is_signed ? copy(std::int16_t{}) : copy(std::uint16_t{});
    case 4:
      return is_signed ? copy(std::int32_t{}) : copy(std::uint32_t{});
    default:
      return copy(std::int64_t{});
  }
}

}  // namespace accel
