#pragma once

namespace accel::train {

/// Whether libtorch has oneDNN's product and the processor has what it asks for: AVX-512 F, BW, DQ and VL.
/// On other processors that product throws.
[[nodiscard]] bool onednn_can_multiply();

/// Whether oneDNN multiplies float32 matrices faster than MKL, which libtorch asks for it: MKL takes its AVX2
/// code on processors of other makers than Intel, also where they have AVX-512, which oneDNN uses.
[[nodiscard]] bool onednn_multiplies_faster();

/// From now on the CPU's products of two large float32 matrices (aten::mm and aten::addmm, what linear layers
/// are made of, forward and backward) are oneDNN's, all others stay libtorch's. The results differ from MKL's
/// by rounding. For the whole process: called at most once, before the first product, and only if
/// onednn_can_multiply().
void multiply_with_onednn();

}  // namespace accel::train
