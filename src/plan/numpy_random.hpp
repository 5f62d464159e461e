#pragma once

#include <cstdint>
#include <random>

namespace accel {

/// numpy.random.RandomState, as far as torch's PowerSGD draws seeds from it.
class NumpyRandom {
 public:
  explicit NumpyRandom(std::uint32_t seed) : engine_(seed) {}

  /// RandomState.randint(below): a number from 0 to below - 1. `below` is at least 1.
  [[nodiscard]] std::uint32_t randint(std::uint32_t below);

 private:
  std::mt19937 engine_;  // numpy's generator, seeded in the same way.
};

}  // namespace accel
