#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ckpt/verify/finding.hpp"

namespace accel::ckpt {

/// A claim that bytes [begin, begin + length) of a file have this CRC-32.
struct SumClaim {
  std::filesystem::path file;
  std::uint64_t begin = 0;
  std::uint64_t length = 0;
  std::uint32_t crc32 = 0;
};

/// A checksum that is still to be compared, and the finding if it does not hold. The text of the finding
/// names what has the checksum ("record 'data/0'"); what was found is appended to it.
struct PendingSum {
  SumClaim claim;
  Finding finding;
};

/// The number of bytes that check_sums reads for `claims`. A byte in several claims counts once.
[[nodiscard]] std::uint64_t bytes_of_claims(std::span<const SumClaim> claims);

/// Checks every claim on `threads` threads. Each byte is read once, however many claims are about it. Files
/// are read in blocks, so memory does not grow with them. `on_bytes` is told of progress, by one thread at a
/// time.
///
/// The result is parallel to `claims`: nothing for a claim that holds, otherwise what was found instead,
/// which may be that the bytes cannot be read.
[[nodiscard]] std::vector<std::optional<std::string>> check_sums(
    std::span<const SumClaim> claims, unsigned threads, const std::function<void(std::uint64_t)>& on_bytes);

/// The claims of `sums`, in their order.
[[nodiscard]] std::vector<SumClaim> claims_of(std::span<const PendingSum> sums);

/// Adds to `findings` those of `sums` that do not hold; `results` is what check_sums gave for them.
void add_wrong_sums(std::vector<PendingSum> sums, std::span<const std::optional<std::string>> results,
                    std::vector<Finding>& findings);

}  // namespace accel::ckpt
