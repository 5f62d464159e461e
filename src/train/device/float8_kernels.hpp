#pragma once

#include <ATen/core/Tensor.h>

namespace accel::train {

/// A cast that the kernels of accel-cuda.so do (device/float8_kernels.cpp). Undefined tensors are not wanted.
/// Everything is on one GPU.
struct Float8Request {
  /// [rows, columns], contiguous, of float32, float16 or bfloat16; or of a float8 dtype: then its bytes are
  /// only brought to `by_column`. The number of columns is a multiple of 16.
  at::Tensor value;
  /// [rows, columns], contiguous, of the dtype that is cast to.
  at::Tensor by_row;
  /// [columns, padded rows], contiguous. The rows behind those of `value` become 0; their number is a
  /// multiple of 16.
  at::Tensor by_column;
  /// float32 []: gets float8_scale() of the largest magnitude.
  at::Tensor scale;
  /// A scale that is there already, float32 []. Then `scale` is not used, and `value` may have any shape:
  /// only `by_row`, of the same number of elements, is written.
  at::Tensor given;
};

/// The function of accel-cuda.so that does the work, on the current stream of the device. It compiles the
/// kernels at its first call. Returns false, and does nothing, if they cannot be compiled: a warning says
/// why.
inline constexpr const char* kCastFloat8Symbol = "accel_cast_float8";
using CastFloat8 = bool(const Float8Request& request);

}  // namespace accel::train
