#pragma once

#include <cstdint>
#include <string_view>

namespace accel {

/// Which units this rank has gathered and reduced during a step, in that order, as a number that ranks
/// compare.
///
/// Backends match the collectives of ranks by the order in which they are issued. A unit that runs, or gets
/// gradients, on some ranks only is issued elsewhere in the order, or not at all, there; and where it meets
/// another unit of the same size, one unit's weights or gradients are mixed with the other's, and no backend
/// can tell.
class CollectiveOrder {
 public:
  enum class Kind : std::uint8_t { kGather, kReduce };

  void note(Kind kind, std::string_view unit) {
    mix(static_cast<std::uint64_t>(kind) + 1);
    for (const char c : unit) mix(static_cast<unsigned char>(c));
  }

  /// A number from 0 to kMost, of what was noted since the last call. Two orders have one number by accident
  /// once in 4096, but not step after step.
  double take() {
    const auto result = static_cast<double>((state_ >> 32U) & kMost);
    state_ = kStart + ++steps_;
    return result;
  }

  /// Whether numbers with this sum, whose squares have that one, are all equal. Exact for up to 16384 ranks.
  [[nodiscard]] static bool are_equal(double sum, double square_sum, int count) {
    return sum * sum == square_sum * count;  // Cauchy and Schwarz.
  }

 private:
  static constexpr std::uint64_t kMost = 4095;
  static constexpr std::uint64_t kStart = 0xcbf29ce484222325;  // Of FNV-1a.
  static constexpr std::uint64_t kPrime = 0x100000001b3;

  void mix(std::uint64_t value) { state_ = (state_ ^ value) * kPrime; }

  std::uint64_t state_ = kStart;
  std::uint64_t steps_ = 0;
};

/// Throws an Error of kind kFailure, which begins with `when`, unless all of `count` ranks had one order:
/// unless the sum of take() over them and that of its squares are what they are then.
void require_one_order(double sum, double square_sum, int count, std::string_view when);

}  // namespace accel
