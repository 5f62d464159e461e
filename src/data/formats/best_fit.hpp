#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace accel {

/// Documents that are put together into packs.
struct Packs {
  std::vector<std::uint32_t> documents;  ///< The documents of pack 0 in their order, then those of pack 1.
  std::vector<std::uint32_t> begins{0};  ///< Where each pack begins in `documents`, and where the last ends.

  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(begins.size()) - 1; }
  [[nodiscard]] std::span<const std::uint32_t> pack(std::int64_t number) const {
    const std::uint32_t* const begin = &begins[static_cast<std::size_t>(number)];
    return std::span(documents).subspan(begin[0], begin[1] - begin[0]);
  }
};

/// Puts documents of these lengths, each from 1 to `capacity` tokens, into packs of at most `capacity` tokens
/// by best fit decreasing: the longest document comes first, and each goes into the pack that it fills best,
/// or into a new one. Among documents of equal length the first comes first, and among packs with equal room
/// the one that has had it longest, as in trl's `packing_strategy="bfd"` (Ding et al., "Fewer Truncations
/// Improve Language Modeling", 2024). The result is a function of the lengths alone.
///
/// It takes O(n log n) time for n documents, fewer than 2^32, and about 12 bytes of memory for each.
[[nodiscard]] Packs pack_best_fit(std::span<const std::uint32_t> lengths, std::int64_t capacity);

}  // namespace accel
