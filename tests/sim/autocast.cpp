// Autocast on the simulated device, with the lists of CUDA (ATen/autocast_mode.cpp).

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#define ACCEL_LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define ACCEL_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define ACCEL_FP32_SET(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define ACCEL_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)

namespace at::autocast {

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  AT_FORALL_LOWER_PRECISION_FP(ACCEL_LOWER)
  AT_FORALL_FP32(ACCEL_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(ACCEL_FP32_SET)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
  AT_FORALL_PROMOTE(ACCEL_PROMOTE)
}

}  // namespace at::autocast
