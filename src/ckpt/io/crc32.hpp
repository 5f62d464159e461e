#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace accel::ckpt {

/// The CRC-32 of zip and gzip. `seed` is the CRC of what came before; 0 at the start.
[[nodiscard]] std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t seed = 0);

/// The CRC of A followed by B, from the CRCs of both and the length of B, without the bytes.
[[nodiscard]] std::uint32_t crc32_combine(std::uint32_t crc_a, std::uint32_t crc_b, std::uint64_t length_b);

}  // namespace accel::ckpt
