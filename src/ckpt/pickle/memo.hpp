#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "ckpt/pickle/graph.hpp"

namespace accel::ckpt::pickle {

/// The memo of a pickle machine. Pickles set an index for nearly every value and fetch few of them, so only
/// those that are ever fetched take 4 bytes, and most of the others are only counted.
class Memo {
 public:
  /// `fetched` has a bit for every index that will be fetched; no index may be `limit` or greater.
  Memo(const std::vector<std::uint64_t>& fetched, std::size_t limit);

  /// Sets the index that MEMOIZE sets next. Whether the value will be fetched.
  bool put_next(Ref value) {
    if (!counting_) return put(count_, value);
    if (count_ != next_fetched_) {
      ++count_;
      return false;
    }
    keep_next(value);
    return true;
  }
  /// The same for any `index` less than limit().
  bool put(std::uint64_t index, Ref value);

  /// Nothing if the index was never set, or is not one of `fetched`.
  [[nodiscard]] std::optional<Ref> get(std::uint64_t index) {
    const Recent& recent = recent_[index % kRecent];
    if (recent.index == index) [[likely]]
      return recent.value;
    return find(index);
  }
  /// How many indices were set: the one that MEMOIZE sets next.
  [[nodiscard]] std::uint64_t count() const { return count_; }
  [[nodiscard]] std::size_t limit() const { return limit_; }

 private:
  struct Word {
    std::uint64_t fetched = 0;
    std::uint64_t set = 0;   // Of those that are not fetched only since counting_ ended.
    std::uint32_t rank = 0;  // Bits of `fetched` in the words before.
  };
  // A few indices, those of class names and attributes, are fetched all the time.
  struct Recent {
    std::uint64_t index = UINT64_MAX;
    Ref value{};
  };
  static constexpr std::size_t kRecent = 256;

  [[nodiscard]] static std::uint64_t bit_of(std::uint64_t index) { return std::uint64_t{1} << index % 64; }
  [[nodiscard]] static std::size_t slot_of(const Word& word, std::uint64_t bit) {
    return word.rank + static_cast<std::size_t>(std::popcount(word.fetched & (bit - 1)));
  }
  void keep_next(Ref value);
  [[nodiscard]] std::uint64_t fetched_from(std::uint64_t index) const;
  void stop_counting();
  [[nodiscard]] std::optional<Ref> find(std::uint64_t index);

  LargeVector<Word> words_;
  LargeVector<Ref> values_;  // In the order of the bits.
  std::array<Recent, kRecent> recent_{};
  std::size_t limit_;
  std::uint64_t count_ = 0;
  // As long as the indices come one after another, all that are less than count_ are set.
  bool counting_ = true;
  std::uint64_t next_fetched_ = 0;  // The least one that is not less than count_.
};

}  // namespace accel::ckpt::pickle
