#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace accel {

/// The types of numbers that can be reduced.
enum class Element { kFloat32, kFloat64, kBFloat16, kFloat16, kInt64, kInt32, kInt16, kInt8, kUInt8 };
enum class Reduction : std::uint32_t { kSum, kMean, kMax, kMin };

[[nodiscard]] std::size_t bytes_of(Element element);
/// Whether `reduction` exists for `element`: integers have no mean.
[[nodiscard]] bool can_reduce(Element element, Reduction reduction);

/// Sets out[i] to the reduction of sources[0][i], sources[1][i], and so on.
///
/// The sources are always taken in their order, so that the result has the same bits whoever computes it.
/// 16-bit floats are added up in float32 and rounded once. Integers wrap. A maximum or minimum with a NaN is
/// a NaN. `out` may be one of the sources, and must not overlap them otherwise. can_reduce() must hold.
void reduce_in_order(Element element, Reduction reduction, std::span<const std::byte* const> sources,
                     std::byte* out, std::size_t elements);

}  // namespace accel
