#pragma once

namespace accel::train {

/// Whether oneDNN multiplies float32 matrices faster than MKL, which libtorch asks for it: MKL takes its AVX2
/// code on processors of other makers than Intel, also where they have AVX-512, which oneDNN uses.
[[nodiscard]] bool onednn_multiplies_faster();

/// From now on the CPU's products of two large float32 matrices (aten::mm and aten::addmm, what linear layers
/// are made of, forward and backward) are oneDNN's, if that is in libtorch; all others stay libtorch's. The
/// results differ from MKL's by rounding. For the whole process: called at most once, before the first
/// product.
void multiply_with_onednn();

}  // namespace accel::train
