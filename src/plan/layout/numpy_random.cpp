#include "plan/layout/numpy_random.hpp"

#include <bit>

namespace accel {

// Takes as many low bits as the largest value has, and draws again if they exceed it.
std::uint32_t NumpyRandom::randint(std::uint32_t below) {
  const std::uint32_t largest = below - 1;
  if (largest == 0) return 0;
  const std::uint32_t mask = 0xFFFF'FFFFU >> std::countl_zero(largest);
  while (true) {
    const auto value = static_cast<std::uint32_t>(engine_()) & mask;
    ++draws_;
    if (value <= largest) return value;
  }
}

void NumpyRandom::skip(std::int64_t draws) {
  engine_.discard(static_cast<unsigned long long>(draws));
  draws_ += draws;
}

}  // namespace accel
