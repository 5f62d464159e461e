#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace accel::train {

/// A GPU's float8 products need a number of summands that is a multiple of this.
inline constexpr std::int64_t kInnerMultiple = 16;

/// A matrix in float8: data / scale is about what was cast. The scale is float32, a scalar, or [rows, 1] or
/// [1, columns].
struct Float8Matrix {
  at::Tensor data;
  at::Tensor scale;

  [[nodiscard]] Float8Matrix t() const { return {data.t(), scale.dim() == 2 ? scale.t() : scale}; }
};

/// A matrix in float8 as the factors of a product on a GPU want it: `rows` is the left one, in row-major
/// order. `columns` is the right one, in column-major order, and has zeros behind its last row, up to a
/// multiple of 16.
struct Float8Factors {
  Float8Matrix rows;
  Float8Matrix columns;
};

/// The scales with which values of at most `amax` in magnitude, a tensor of any shape, fill the range of
/// `dtype`, which is float8_e4m3fn or float8_e5m2. Source: amax_to_scale() of torchao 0.18, bit for bit.
[[nodiscard]] at::Tensor float8_scale(const at::Tensor& amax, at::ScalarType dtype);

/// `value` times `scale`, computed in float32 and cast to `dtype`. The scale must be float8_scale() of at
/// least the largest magnitude, but for rounding, or less. Only products of float64 are limited to the range
/// of `dtype`.
[[nodiscard]] at::Tensor float8_cast(const at::Tensor& value, const at::Tensor& scale, at::ScalarType dtype);

/// Writes float8_cast() of a vector with one scale to `result`, and takes little memory.
void float8_cast_to(const at::Tensor& result, const at::Tensor& value, const at::Tensor& scale);

/// Casts `value` [rows, columns] with the scale of its largest magnitude. The kernels of a GPU make the
/// wanted factors in two passes over `value`. Without kernels both factors are the same matrix in the order
/// that `value` has, without padding.
[[nodiscard]] Float8Factors float8_factors(const at::Tensor& value, at::ScalarType dtype, bool wants_rows,
                                           bool wants_columns);

/// Returns what Float8Factors says of `columns`, or `matrix` itself without kernels.
[[nodiscard]] Float8Matrix float8_columns(const Float8Matrix& matrix);

}  // namespace accel::train
