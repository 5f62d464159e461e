#pragma once

#include <cstdint>
#include <string_view>

namespace accel {

/// A number that stands for the units which this rank has gathered and reduced during a step, in their order.
/// The ranks compare their numbers.
///
/// Backends match the collectives of ranks by the order in which they are issued. A unit that runs, or gets
/// gradients, on some ranks only is issued at another place in the order there, or not at all. If it is
/// matched with another unit of the same size, the weights or gradients of the two units are mixed, and no
/// backend can tell.
class CollectiveOrder {
 public:
  enum class Kind : std::uint8_t { kGather, kReduce };

  void note(Kind kind, std::string_view unit) {
    mix(static_cast<std::uint64_t>(kind) + 1);
    for (const char c : unit) mix(static_cast<unsigned char>(c));
  }

  /// Returns a number from 0 to kMost for what was noted since the last call. Two different orders have the
  /// same number by accident once in 4096 steps, but not step after step.
  double take() {
    const auto result = static_cast<double>((state_ >> 32U) & kMost);
    state_ = kStart + ++steps_;
    return result;
  }

  /// Whether `count` numbers with this sum and this sum of squares are all equal. Exact for up to 16384
  /// ranks.
  [[nodiscard]] static bool are_equal(double sum, double square_sum, int count) {
    return sum * sum == square_sum * count;  // The Cauchy-Schwarz inequality says so.
  }

 private:
  static constexpr std::uint64_t kMost = 4095;
  static constexpr std::uint64_t kStart = 0xcbf29ce484222325;  // FNV-1a's start value.
  static constexpr std::uint64_t kPrime = 0x100000001b3;

  void mix(std::uint64_t value) { state_ = (state_ ^ value) * kPrime; }

  std::uint64_t state_ = kStart;
  std::uint64_t steps_ = 0;
};

/// Throws an Error of kind kFailure that begins with `when`, unless all `count` ranks have the same order.
/// `sum` and `square_sum` are the sums of take() and of its square over the ranks.
void require_one_order(double sum, double square_sum, int count, std::string_view when);

}  // namespace accel
