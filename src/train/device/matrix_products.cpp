#include "train/device/matrix_products.hpp"

#include <ATen/ATen.h>
#include <ATen/CPUFunctions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <cstdint>

namespace at::native {

// libtorch exports this function, but the wheel has no header for it: result = beta * result + alpha * (mat1
// @ mat2). The symbol is weak, so that a libtorch without it goes on with MKL. Source: pytorch,
// aten/src/ATen/native/mkldnn/Matmul.h.
__attribute__((weak)) void mkldnn_matmul(const Tensor& mat1, const Tensor& mat2, const Tensor& result,
                                         float beta, float alpha);

}  // namespace at::native

namespace accel::train {
namespace {

/// From this number of multiplications on, oneDNN's time to start does not matter.
constexpr std::int64_t kLargeProduct = std::int64_t{1} << 20;

/// Whether oneDNN computes this product. Wrong operands do not suit, so that libtorch reports them.
bool suits(const at::Tensor& a, const at::Tensor& b) {
  return a.dim() == 2 && b.dim() == 2 && a.scalar_type() == at::kFloat && b.scalar_type() == at::kFloat &&
         a.size(1) == b.size(0) && a.numel() > 0 && b.numel() > 0 && a.numel() >= kLargeProduct / b.size(1);
}

at::Tensor mm(const at::Tensor& a, const at::Tensor& b) {
  if (!suits(a, b)) return at::cpu::mm(a, b);
  const at::Tensor result = at::empty({a.size(0), b.size(1)}, a.options());
  at::native::mkldnn_matmul(a, b, result, /*beta=*/0, /*alpha=*/1);
  return result;
}

at::Tensor addmm(const at::Tensor& bias, const at::Tensor& a, const at::Tensor& b, const at::Scalar& beta,
                 const at::Scalar& alpha) {
  const bool plain =
      beta.isIntegral(false) && alpha.isIntegral(false) && beta.toLong() == 1 && alpha.toLong() == 1;
  if (!plain || bias.dim() != 1 || bias.scalar_type() != at::kFloat || !suits(a, b) ||
      bias.size(0) != b.size(1)) {
    return at::cpu::addmm(bias, a, b, beta, alpha);
  }
  const at::Tensor result = at::empty({a.size(0), b.size(1)}, a.options());
  result.copy_(bias.expand_as(result));
  at::native::mkldnn_matmul(a, b, result, /*beta=*/1, /*alpha=*/1);
  return result;
}

/// Whether oneDNN's product runs in this process. It throws if ONEDNN_MAX_CPU_ISA forbids the instructions
/// that it needs, and libtorch exports no function that tells.
bool multiplies_here() {
  try {
    const at::Tensor one = at::ones({1, 1});
    at::native::mkldnn_matmul(one, one, at::empty({1, 1}), /*beta=*/0, /*alpha=*/1);
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

/// Drops libtorch's warning that an operator gets another kernel, which is intended here.
class Quiet final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& /*warning*/) override {}
};

}  // namespace

bool onednn_can_multiply() {
#if defined(__x86_64__)
  return at::native::mkldnn_matmul != nullptr && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl") && multiplies_here();
#else
  return false;
#endif
}

bool onednn_multiplies_faster() {
#if defined(__x86_64__)
  return !__builtin_cpu_is("intel") && onednn_can_multiply();
#else
  return false;
#endif
}

void multiply_with_onednn() {
  Quiet quiet;
  const c10::WarningUtils::WarningHandlerGuard guard(&quiet);
  // The library is never destroyed: its destructor would remove the kernels.
  static auto* const library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  library->impl("mm", TORCH_FN(mm));
  library->impl("addmm", TORCH_FN(addmm));
}

bool multiplies_to_float32(const at::Tensor& tensor) {
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  const c10::DispatchKey key = c10::highestPriorityBackendTypeId(tensor.key_set());
  const auto has = [&](const char* name, const char* overload) {
    const auto schema = dispatcher.findSchema({name, overload});
    return schema && schema->hasKernelForDispatchKey(key);
  };
  return has("aten::mm", "dtype") && has("aten::addmm", "dtype_out");
}

void allow_tf32(bool allows) {
  at::globalContext().setAllowTF32CuBLAS(allows);
  at::globalContext().setAllowTF32CuDNN(allows);
}

}  // namespace accel::train
