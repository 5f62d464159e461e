#pragma once

#include <cstdint>
#include <span>
#include <type_traits>

#include "base/error.hpp"

namespace accel {

/// Arithmetic on sizes and offsets that come from files: an overflow is an Error of kind kCorrupt, never a
/// wrap.
template <class T>
[[nodiscard]] T checked_add(T a, T b) {
  static_assert(std::is_integral_v<T>);
  T sum;
  if (__builtin_add_overflow(a, b, &sum))
    throw Error(ErrorKind::kCorrupt, "a size or offset overflows 64 bits");
  return sum;
}

template <class T>
[[nodiscard]] T checked_mul(T a, T b) {
  static_assert(std::is_integral_v<T>);
  T product;
  if (__builtin_mul_overflow(a, b, &product))
    throw Error(ErrorKind::kCorrupt, "a size or offset overflows 64 bits");
  return product;
}

/// The product of a shape's dimensions; 1 for a 0-dim tensor. A negative dimension is an Error.
[[nodiscard]] inline std::int64_t checked_numel(std::span<const std::int64_t> shape) {
  std::int64_t numel = 1;
  for (std::int64_t dim : shape) {
    if (dim < 0) throw Error(ErrorKind::kCorrupt, "a shape has a negative dimension");
    numel = checked_mul(numel, dim);
  }
  return numel;
}

/// Bytes of `shape` at `item_bytes` each.
[[nodiscard]] inline std::uint64_t checked_nbytes(std::span<const std::int64_t> shape,
                                                  std::uint64_t item_bytes) {
  return checked_mul<std::uint64_t>(static_cast<std::uint64_t>(checked_numel(shape)), item_bytes);
}

/// The bytes of `numel` elements. An Error as for a shape.
[[nodiscard]] inline std::uint64_t checked_nbytes(std::int64_t numel, std::int64_t item_bytes) {
  return static_cast<std::uint64_t>(checked_mul(numel, item_bytes));
}

/// `value` rounded up to a multiple of `alignment`, which must be positive.
template <class T>
[[nodiscard]] T round_up(T value, T alignment) {
  static_assert(std::is_integral_v<T>);
  const T remainder = value % alignment;
  return remainder == 0 ? value : checked_add<T>(value, alignment - remainder);
}

}  // namespace accel
