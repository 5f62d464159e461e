#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace accel::ckpt {

/// Appends `value` as `width` bytes, least significant first.
inline void put_uint(std::string& out, std::uint64_t value, std::size_t width) {
  for (std::size_t i = 0; i < width; ++i) out += static_cast<char>(value >> (8 * i) & 0xffU);
}

/// The `width` bytes at `at`, least significant first. The caller has checked that they are there.
[[nodiscard]] inline std::uint64_t get_uint(std::span<const std::byte> bytes, std::size_t at,
                                            std::size_t width) {
  std::uint64_t value = 0;
  for (std::size_t i = width; i-- > 0;) value = value << 8 | std::to_integer<std::uint64_t>(bytes[at + i]);
  return value;
}

/// The bytes as a text, which is valid as long as they are.
[[nodiscard]] inline std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace accel::ckpt
