#pragma once

#include <ATen/core/Tensor.h>

namespace accel::train {

/// Whether libtorch has oneDNN's product, and the processor and ONEDNN_MAX_CPU_ISA allow what it needs:
/// AVX-512 F, BW, DQ and VL. Otherwise that product throws.
[[nodiscard]] bool onednn_can_multiply();

/// Whether oneDNN multiplies float32 matrices faster than MKL, which libtorch uses by default. MKL takes its
/// AVX2 code on processors of other makers than Intel, even if they have AVX-512. oneDNN uses AVX-512 on
/// them.
[[nodiscard]] bool onednn_multiplies_faster();

/// Makes oneDNN compute the CPU's products of two large float32 matrices: aten::mm and aten::addmm, which
/// linear layers call in forward and backward. All other products stay libtorch's. The results differ from
/// MKL's by rounding. Affects the whole process: call it at most once, before the first product, and only if
/// onednn_can_multiply().
void multiply_with_onednn();

/// Whether the device of `tensor`, of 16 bits, has products with float32 results, as CUDA has: aten::mm and
/// aten::addmm with the dtype of the result.
[[nodiscard]] bool multiplies_to_float32(const at::Tensor& tensor);

/// Says for the whole process whether cuBLAS and cuDNN may round the factors of products of float32 to TF32,
/// as torch.backends.cuda.matmul.allow_tf32 and torch.backends.cudnn.allow_tf32 do together.
void allow_tf32(bool allows);

}  // namespace accel::train
