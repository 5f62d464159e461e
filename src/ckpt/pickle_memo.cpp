#include "ckpt/pickle_memo.hpp"

namespace accel::ckpt::pickle {

Memo::Memo(const std::vector<std::uint64_t>& fetched, std::size_t limit) : limit_(limit) {
  words_.reserve(fetched.size());
  std::uint32_t rank = 0;
  for (const std::uint64_t bits : fetched) {
    words_.push_back({bits, 0, rank});
    rank += static_cast<std::uint32_t>(std::popcount(bits));
  }
  values_.resize(rank);
}

}  // namespace accel::ckpt::pickle
