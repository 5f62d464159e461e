#pragma once

#include <cstddef>
#include <span>

#include "ckpt/tensor/dtype.hpp"

namespace accel::ckpt {

/// Whether `dtype` is a real floating-point type, which `--dtype` converts. Integers, bool and complex
/// numbers keep their dtype.
[[nodiscard]] bool is_floating(DType dtype);

/// Whether convert_dtype can convert `from` to `to`: from any real floating-point type to float16, bfloat16,
/// float32 or float64.
[[nodiscard]] bool can_convert(DType from, DType to);

/// Converts elements as `tensor.to(dtype)` does on a CPU: through float32, rounded to nearest, ties to even.
/// Numbers that are too large become infinity, subnormals are kept, NaN stays NaN (its payload may differ).
/// `source` and `target` hold the same number of elements and must not overlap. Throws Error (kFailure)
/// unless can_convert(from, to).
void convert_dtype(DType from, std::span<const std::byte> source, DType to, std::span<std::byte> target);

}  // namespace accel::ckpt
