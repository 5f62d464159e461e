#include "cost.hpp"

#include <algorithm>

namespace accel::sim {
namespace {

double count(const at::Tensor& tensor) { return static_cast<double>(tensor.numel()); }

/// Of a product of `a` [..., m, k] with another matrix of n columns, where `out` has m x n elements each.
double product(const at::Tensor& a, double columns) { return 2 * count(a) * columns; }

}  // namespace

double flops_of(std::string_view name, const std::vector<at::Tensor>& tensors) {
  const auto last = [](const at::Tensor& tensor) { return static_cast<double>(tensor.size(-1)); };
  if (name == "aten::mm" || name == "aten::bmm" || name == "aten::_scaled_mm")
    return product(tensors.at(0), last(tensors.at(1)));
  if (name == "aten::addmm" || name == "aten::baddbmm" || name == "aten::addmm_")
    return product(tensors.at(1), last(tensors.at(2)));
  if (name.starts_with("aten::_scaled_dot_product_flash_attention_for_cpu")) {
    // [batch, heads, length, head size]; backward's first tensor is the gradient of the output.
    const bool is_backward = name.ends_with("backward");
    const at::Tensor& query = tensors.at(is_backward ? 1 : 0);
    const at::Tensor& key = tensors.at(is_backward ? 2 : 1);
    const double forward = 4 * count(query) * static_cast<double>(key.size(-2));
    // Half of the scores are masked in a causal model, which is what these kernels are used for here.
    return (is_backward ? 2.5 : 1) * forward / 2;
  }
  if (name.starts_with("aten::convolution") || name.starts_with("aten::mkldnn_convolution")) {
    // Each element of the input meets each element of a filter's output channel once, at most.
    const at::Tensor& input = tensors.at(name.ends_with("backward") ? 1 : 0);
    const at::Tensor& weight = tensors.at(name.ends_with("backward") ? 2 : 1);
    return 2 * count(input) * count(weight) / static_cast<double>(std::max<std::int64_t>(1, weight.size(1)));
  }
  return 0;
}

Seconds seconds_of(const Speeds& speeds, double flops, at::ScalarType dtype, std::size_t bytes) {
  const bool is_half = dtype == at::kHalf || dtype == at::kBFloat16;
  const double peak = at::isFloat8Type(dtype) ? speeds.matrix_flops_8
                      : is_half               ? speeds.matrix_flops_16
                                              : speeds.matrix_flops_32;
  return std::max({speeds.kernel_s, flops / peak, static_cast<double>(bytes) / speeds.memory_bytes});
}

}  // namespace accel::sim
