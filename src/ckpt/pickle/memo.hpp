#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "ckpt/pickle/graph.hpp"

namespace accel::ckpt::pickle {

/// The memo of a pickle machine. Pickles set an index for nearly every value and fetch few of them. So an
/// index takes 4 bytes only if it is ever fetched, and most others are only counted.
class Memo {
 public:
  /// `fetched` has a bit for every index that will be fetched; no index may be `limit` or greater.
  Memo(const std::vector<std::uint64_t>& fetched, std::size_t limit);

  /// Sets the index that MEMOIZE sets next. Returns whether the value will be fetched.
  bool put_next(Ref value) {
    if (!counting_) return put(count_, value);
    if (count_ != next_fetched_) {
      ++count_;
      return false;
    }
    keep_next(value);
    return true;
  }
  /// Sets `index`, which must be less than limit(). Returns whether the value will be fetched.
  bool put(std::uint64_t index, Ref value);

  /// The value, or nothing if the index was never set or is not one of `fetched`.
  [[nodiscard]] std::optional<Ref> get(std::uint64_t index) {
    const Recent& recent = recent_[index % kRecent];
    if (recent.index == index) [[likely]]
      return recent.value;
    return find(index);
  }
  /// The number of indices that were set, which is the index that MEMOIZE sets next.
  [[nodiscard]] std::uint64_t count() const { return count_; }
  [[nodiscard]] std::size_t limit() const { return limit_; }

 private:
  struct Word {
    std::uint64_t fetched = 0;
    std::uint64_t set = 0;   // While counting_ is true, it has only indices that are fetched.
    std::uint32_t rank = 0;  // Number of bits of `fetched` in earlier words.
  };
  // A few indices, those of class names and attributes, are fetched again and again.
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
  LargeVector<Ref> values_;  // The values of fetched indices, in the order of the indices.
  std::array<Recent, kRecent> recent_{};
  std::size_t limit_;
  std::uint64_t count_ = 0;
  // While indices are set one after another, exactly those less than count_ are set.
  bool counting_ = true;
  std::uint64_t next_fetched_ = 0;  // The next index, from count_ on, that will be fetched.
};

}  // namespace accel::ckpt::pickle
