#include "ckpt/pickle/memo.hpp"

#include <algorithm>

namespace accel::ckpt::pickle {

Memo::Memo(const std::vector<std::uint64_t>& fetched, std::size_t limit) : limit_(limit) {
  words_.reserve(fetched.size());
  std::uint32_t rank = 0;
  for (const std::uint64_t bits : fetched) {
    words_.push_back({bits, 0, rank});
    rank += static_cast<std::uint32_t>(std::popcount(bits));
  }
  values_.resize(rank);
  next_fetched_ = fetched_from(0);
}

std::uint64_t Memo::fetched_from(std::uint64_t index) const {
  std::uint64_t mask = ~std::uint64_t{0} << index % 64;
  for (std::size_t at = index / 64; at < words_.size(); ++at, mask = ~std::uint64_t{0}) {
    const std::uint64_t bits = words_[at].fetched & mask;
    if (bits != 0) return at * 64 + static_cast<std::uint64_t>(std::countr_zero(bits));
  }
  return UINT64_MAX;
}

void Memo::keep_next(Ref value) {
  const std::uint64_t index = count_++;
  Word& word = words_[index / 64];
  word.set |= bit_of(index);
  values_[slot_of(word, bit_of(index))] = value;
  recent_[index % kRecent] = {index, value};
  next_fetched_ = fetched_from(count_);
}

void Memo::stop_counting() {
  counting_ = false;
  words_.resize(std::max<std::size_t>(words_.size(), count_ / 64 + 1));
  for (std::size_t at = 0; at < count_ / 64; ++at) words_[at].set = ~std::uint64_t{0};
  words_[count_ / 64].set |= bit_of(count_) - 1;
}

bool Memo::put(std::uint64_t index, Ref value) {
  if (counting_) {
    if (index == count_) return put_next(value);
    stop_counting();
  }
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

std::optional<Ref> Memo::find(std::uint64_t index) {
  if (index / 64 >= words_.size()) return std::nullopt;
  const Word& word = words_[index / 64];
  const std::uint64_t bit = bit_of(index);
  if ((word.set & word.fetched & bit) == 0) return std::nullopt;
  recent_[index % kRecent] = {index, values_[slot_of(word, bit)]};
  return recent_[index % kRecent].value;
}

}  // namespace accel::ckpt::pickle
