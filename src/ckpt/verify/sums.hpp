#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace accel::ckpt {

/// A claim that bytes [begin, begin + length) of a file have this CRC.
struct SumClaim {
  std::filesystem::path file;
  std::uint64_t begin = 0;
  std::uint64_t length = 0;
  std::uint32_t crc32 = 0;
};

/// The bytes that checking `claims` reads: those that several claim count once.
[[nodiscard]] std::uint64_t bytes_of_claims(std::span<const SumClaim> claims);

/// Checks every claim, on `threads` threads. Each byte is read once, however many claims are about it, in
/// blocks: memory does not grow with the files. `on_bytes` hears of progress, never from two threads at once.
///
/// Parallel to `claims`: nothing for those that hold, for the others what was found instead, which may be
/// that the bytes cannot be read.
[[nodiscard]] std::vector<std::optional<std::string>> check_sums(
    std::span<const SumClaim> claims, unsigned threads, const std::function<void(std::uint64_t)>& on_bytes);

}  // namespace accel::ckpt
