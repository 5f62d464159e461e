#pragma once

#include <ATen/core/Tensor.h>

#include "train/graph/run/float8_cast.hpp"

namespace accel::train {

/// How a float8 linear scales its operands. The defaults are torchao's recipe "tensorwise".
struct Float8Rules {
  /// Each row has a scale of its own along the dimension that the product sums over, and the scale is a power
  /// of two. Otherwise a tensor has one scale.
  bool rowwise = false;
  /// The gradient of the weight is computed from the input and the gradient of the output as they are, and
  /// that of the input from a weight with one scale. Only with `rowwise`.
  bool plain_weight_gradient = false;
};

/// Returns `input` [..., in] times `weight` [out, in] transposed, plus `bias` [out], which may be undefined,
/// with both products of backward in float8, too: the arithmetic of Float8Linear in torchao 0.18, bit for bit
/// on the same device.
///
/// Every operand of a product is cast to float8 with a scale from its largest absolute value. Input and
/// weight are float8_e4m3fn. The gradient of the output is float8_e5m2, and with `rowwise` float8_e4m3fn.
/// Backward keeps the weight if the input has a gradient, and the input if the weight has one, both as they
/// are and not in float8. The result has the dtype of the input,
/// or that of autocast. On a GPU `out` and `in` must be multiples of 16; a CPU has no such rule.
///
/// `gathered` is the weight in float8_e4m3fn with one scale, if it has been cast before. Then `weight` gets
/// the gradient, and its memory is not read. Backward reads the memory of `gathered` again, which may have
/// been freed and filled with the same bytes meanwhile.
[[nodiscard]] at::Tensor float8_linear(const at::Tensor& input, const at::Tensor& weight,
                                       const at::Tensor& bias, const Float8Rules& rules,
                                       const Float8Matrix& gathered = {});

}  // namespace accel::train
