#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "ckpt/pickle/graph.hpp"

namespace accel::ckpt::pickle {

/// The memo of a pickle machine. Pickles set an index for nearly every value and fetch few of them, so only
/// an index that is ever fetched takes the 4 bytes of a value.
class Memo {
 public:
  /// `fetched` has a bit for every index that will be fetched; no index may be `limit` or greater.
  Memo(const std::vector<std::uint64_t>& fetched, std::size_t limit) : limit_(limit) {
    std::uint32_t rank = 0;
    for (const std::uint64_t bits : fetched) {
      words_.push_back({bits, 0, rank});
      rank += static_cast<std::uint32_t>(std::popcount(bits));
    }
    values_.resize(rank);
  }

  /// Sets `index`, which must be less than limit(). Returns whether the value will be fetched.
  [[gnu::always_inline]] bool put(std::uint64_t index, Ref value) {
    if (index / 64 >= words_.size()) [[unlikely]]
      words_.resize(index / 64 + 1);
    Word& word = words_[index / 64];
    const std::uint64_t bit = std::uint64_t{1} << index % 64;
    if ((word.set & bit) == 0) ++count_;
    word.set |= bit;
    if ((word.fetched & bit) == 0) return false;
    values_[slot_of(word, bit)] = value;
    return true;
  }

  /// The value, or nothing if the index was never set or is not one of `fetched`.
  [[nodiscard, gnu::always_inline]] std::optional<Ref> get(std::uint64_t index) const {
    if (index / 64 >= words_.size()) return std::nullopt;
    const Word& word = words_[index / 64];
    const std::uint64_t bit = std::uint64_t{1} << index % 64;
    if ((word.set & word.fetched & bit) == 0) return std::nullopt;
    return values_[slot_of(word, bit)];
  }
  /// The number of indices that were set, which is the index that MEMOIZE sets next.
  [[nodiscard]] std::uint64_t count() const { return count_; }
  [[nodiscard]] std::size_t limit() const { return limit_; }

 private:
  struct Word {
    std::uint64_t fetched = 0;
    std::uint64_t set = 0;
    std::uint32_t rank = 0;  // Number of bits of `fetched` in earlier words.
  };

  [[nodiscard]] static std::size_t slot_of(const Word& word, std::uint64_t bit) {
    return word.rank + static_cast<std::size_t>(std::popcount(word.fetched & (bit - 1)));
  }

  LargeVector<Word> words_;
  LargeVector<Ref> values_;  // The values of fetched indices, in the order of the indices.
  std::size_t limit_;
  std::uint64_t count_ = 0;
};

}  // namespace accel::ckpt::pickle
