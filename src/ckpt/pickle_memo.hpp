#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "ckpt/pickle_graph.hpp"

namespace accel::ckpt::pickle {

/// The memo of a pickle machine. Pickles set an index for nearly every value and fetch few of them, so only
/// those that are ever fetched take 4 bytes; the others take a bit.
class Memo {
 public:
  /// `fetched` has a bit for every index that will be fetched; no index may be `limit` or greater.
  Memo(const std::vector<std::uint64_t>& fetched, std::size_t limit);

  /// Whether the value will be fetched. `index` must be less than limit().
  bool put(std::uint64_t index, Ref value) {
    if (index / 64 >= words_.size()) words_.resize(index / 64 + 1);
    Word& word = words_[index / 64];
    const std::uint64_t bit = bit_of(index);
    if ((word.set & bit) == 0) ++count_;
    word.set |= bit;
    if ((word.fetched & bit) == 0) return false;
    values_[slot_of(word, bit)] = value;
    recent_[index % kRecent] = {index, value};
    return true;
  }
  /// Nothing if the index was never set, or is not one of `fetched`.
  [[nodiscard]] std::optional<Ref> get(std::uint64_t index) {
    Recent& recent = recent_[index % kRecent];
    if (recent.index == index) return recent.value;
    if (index / 64 >= words_.size()) return std::nullopt;
    const Word& word = words_[index / 64];
    const std::uint64_t bit = bit_of(index);
    if ((word.set & word.fetched & bit) == 0) return std::nullopt;
    recent = {index, values_[slot_of(word, bit)]};
    return recent.value;
  }
  /// How many indices were set: the one that MEMOIZE sets next.
  [[nodiscard]] std::uint64_t count() const { return count_; }
  [[nodiscard]] std::size_t limit() const { return limit_; }

 private:
  struct Word {
    std::uint64_t fetched = 0;
    std::uint64_t set = 0;
    std::uint32_t rank = 0;  // Bits of `fetched` in the words before.
  };
  // A few indices, those of class names and attributes, are fetched all the time.
  struct Recent {
    std::uint64_t index = UINT64_MAX;
    Ref value;
  };
  static constexpr std::size_t kRecent = 256;

  [[nodiscard]] static std::uint64_t bit_of(std::uint64_t index) { return std::uint64_t{1} << index % 64; }
  [[nodiscard]] static std::size_t slot_of(const Word& word, std::uint64_t bit) {
    return word.rank + static_cast<std::size_t>(std::popcount(word.fetched & (bit - 1)));
  }

  LargeVector<Word> words_;
  LargeVector<Ref> values_;  // In the order of the bits.
  std::array<Recent, kRecent> recent_{};
  std::size_t limit_;
  std::uint64_t count_ = 0;
};

}  // namespace accel::ckpt::pickle
