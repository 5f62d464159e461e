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

  /// How many numbers the generator has drawn. One call of randint() may draw several.
  [[nodiscard]] std::int64_t draws() const { return draws_; }
  /// Brings a new generator to where another one of the same seed is after so many draws.
  void skip(std::int64_t draws);

 private:
  std::mt19937 engine_;  // numpy's generator, seeded in the same way.
  std::int64_t draws_ = 0;
};

}  // namespace accel
