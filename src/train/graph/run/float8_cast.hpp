#pragma once

#include <ATen/core/Tensor.h>

namespace accel::train {

/// A matrix in float8: data / scale is about what was cast. The scale is float32, a scalar, or [rows, 1] or
/// [1, columns].
struct Float8Matrix {
  at::Tensor data;
  at::Tensor scale;

  [[nodiscard]] Float8Matrix t() const { return {data.t(), scale.dim() == 2 ? scale.t() : scale}; }
};

/// The scales with which values of at most `amax` in magnitude, a tensor of any shape, fill the range of
/// `dtype`, which is float8_e4m3fn or float8_e5m2. Source: amax_to_scale() of torchao 0.18, bit for bit.
[[nodiscard]] at::Tensor float8_scale(const at::Tensor& amax, at::ScalarType dtype);

/// `value` times `scale`, limited to the range of `dtype` and cast to it.
[[nodiscard]] at::Tensor float8_cast(const at::Tensor& value, const at::Tensor& scale, at::ScalarType dtype);

}  // namespace accel::train
