#pragma once

#include <array>
#include <cstdint>

namespace accel {

/// The order of an epoch's samples: a permutation of [0, size) that is a function of (seed, epoch) alone,
/// computed one index at a time in O(1) memory, so that resuming seeks in O(1) and a change of world size
/// keeps the global order.
///
/// A Feistel network of four rounds over the smallest even number of bits that holds `size`, walked along its
/// cycle until it falls below `size` (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002).
class SampleOrder {
 public:
  /// Without `shuffle` the order is the identity.
  SampleOrder(std::int64_t size, bool shuffle, std::uint64_t seed, std::int64_t epoch);

  /// Returns the sample at `position` of the epoch. `position` is in [0, size).
  [[nodiscard]] std::int64_t at(std::int64_t position) const;

 private:
  std::uint64_t size_;
  bool shuffle_;
  unsigned half_bits_ = 1;
  std::array<std::uint64_t, 4> keys_{};
};

}  // namespace accel
