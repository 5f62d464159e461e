#pragma once

#include <cstdint>
#include <span>

namespace accel::ckpt {

/// Rows of a matrix of low rank as a product of two factors.
struct LowRankRows {
  std::span<const float> left;   ///< The left factor, [rows, rank], row-major.
  std::span<const float> right;  ///< The right factor, [rank, columns], row-major.
  std::int64_t rank = 0;
  std::int64_t columns = 0;
  float scaling = 1;
};

/// Adds scaling * (left @ right) to `values`, which are elements of the rows, in their row-major order, from
/// the element `begin` on. Each element of the product is a sum in float64, where the products of float32 are
/// exact, rounded once to float32. It is then multiplied by the scaling and added, both in float32. So the
/// bits are the same on all processors. PEFT sums in float32, in an order that depends on the processor: its
/// product differs from this one by at most about rank * 2^-24 * (|left| @ |right|).
void add_low_rank(const LowRankRows& product, std::int64_t begin, std::span<float> values);

}  // namespace accel::ckpt
