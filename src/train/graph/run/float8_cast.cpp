#include "train/graph/run/float8_cast.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>

#include "train/device/accelerator.hpp"
#include "train/device/float8_kernels.hpp"

namespace accel::train {
namespace {

/// The range of a float8 dtype, and the least largest value with which a scale is computed, as in torchao.
constexpr double kMaxE4M3 = 448;
constexpr double kMaxE5M2 = 57344;
constexpr double kLeastAmax = 1e-12;

/// So many elements are cast at a time: what lies between float32 and float8 takes five bytes for each.
constexpr std::int64_t kCastElements = std::int64_t{4} << 20;

/// Null if the accelerator has no kernels for it.
CastFloat8* kernels() {
  static auto* const found = reinterpret_cast<CastFloat8*>(optional_accelerator_symbol(kCastFloat8Symbol));
  return found;
}

/// Whether kernels for `value` are there.
bool has_kernels(const at::Tensor& value) {
  const at::ScalarType dtype = value.scalar_type();
  const bool is_known = dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16;
  return !value.is_cpu() && is_known && value.numel() > 0 && kernels() != nullptr;
}

/// Whether the kernels take matrices of this size. A block has 64 rows, and a grid 65535 blocks of rows.
bool suits_kernels(const at::Tensor& matrix) {
  return matrix.size(1) % kInnerMultiple == 0 && matrix.size(0) < std::int64_t{64} * 65535;
}

/// A kernel reads 16 bytes at a time.
at::Tensor aligned(const at::Tensor& tensor) {
  const at::Tensor whole = tensor.contiguous();
  return reinterpret_cast<std::uintptr_t>(whole.data_ptr()) % 16 == 0 ? whole : whole.clone();
}

/// Memory for `columns` of a matrix of these sizes.
at::Tensor empty_columns(const at::Tensor& matrix, at::ScalarType dtype) {
  const std::int64_t rows = (matrix.size(0) + kInnerMultiple - 1) / kInnerMultiple * kInnerMultiple;
  return at::empty({matrix.size(1), rows}, matrix.options().dtype(dtype));
}

double max_of(at::ScalarType dtype) { return dtype == at::kFloat8_e5m2 ? kMaxE5M2 : kMaxE4M3; }

}  // namespace

at::Tensor float8_scale(const at::Tensor& amax, at::ScalarType dtype) {
  return (max_of(dtype) / amax.to(at::kDouble).clamp_min(kLeastAmax)).to(at::kFloat);
}

at::Tensor float8_cast(const at::Tensor& value, const at::Tensor& scale, at::ScalarType dtype) {
  const at::Tensor factors = scale.dim() == 0 ? scale.reshape({1}) : scale;
  // A float64 may be infinite in float32.
  if (value.scalar_type() == at::kDouble)
    return (value.to(at::kFloat) * factors).clamp_(-max_of(dtype), max_of(dtype)).to(dtype);
  // Nothing else has to be clamped: the product of the largest magnitude and its scale, each rounded to
  // float32, is cast to the largest number of `dtype`.
  if (value.is_cpu()) return (value.to(at::kFloat) * factors).to(dtype);
  at::Tensor result = at::empty_like(value, value.options().dtype(dtype));
  // One kernel reads `value`, computes in float32, and writes float8.
  at::mul_out(result, value, factors);
  return result;
}

void float8_cast_to(const at::Tensor& result, const at::Tensor& value, const at::Tensor& scale) {
  if (has_kernels(value) && kernels()({.value = value, .by_row = result, .given = scale})) return;
  for (std::int64_t begin = 0; begin < value.numel(); begin += kCastElements) {
    const std::int64_t numel = std::min(kCastElements, value.numel() - begin);
    result.narrow(0, begin, numel)
        .copy_(float8_cast(value.narrow(0, begin, numel), scale, result.scalar_type()));
  }
}

Float8Factors float8_factors(const at::Tensor& value, at::ScalarType dtype, bool wants_rows,
                             bool wants_columns) {
  if (has_kernels(value) && suits_kernels(value)) {
    Float8Request request{.value = aligned(value), .scale = at::empty({}, value.options().dtype(at::kFloat))};
    if (wants_rows) request.by_row = at::empty(value.sizes(), value.options().dtype(dtype));
    if (wants_columns) request.by_column = empty_columns(value, dtype);
    if (kernels()(request)) {
      return {{request.by_row, request.scale},
              {wants_columns ? request.by_column.t() : at::Tensor(), request.scale}};
    }
  }
  const auto [least, largest] = at::aminmax(value);  // Reads once, and writes no magnitudes.
  const at::Tensor scale = float8_scale(at::maximum(largest, least.neg()), dtype);
  const Float8Matrix matrix = {float8_cast(value, scale, dtype), scale};
  return {matrix, matrix};
}

Float8Matrix float8_columns(const Float8Matrix& matrix) {
  const at::Tensor& bytes = matrix.data;
  if (bytes.is_cpu() || bytes.numel() == 0 || !suits_kernels(bytes) || kernels() == nullptr) return matrix;
  const Float8Request request{.value = aligned(bytes),
                              .by_column = empty_columns(bytes, bytes.scalar_type())};
  if (!kernels()(request)) return matrix;
  return {request.by_column.t(), matrix.scale};
}

}  // namespace accel::train
