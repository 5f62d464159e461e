#include "train/graph/run/float8_linear.hpp"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <vector>

namespace accel::train {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The dimension of a matrix over which a scale is taken, or none for one scale.
using ScaledOver = std::optional<std::int64_t>;

/// Casts with scales that are powers of two.
Float8Matrix to_float8(const at::Tensor& value, at::ScalarType dtype, ScaledOver over) {
  const at::Tensor magnitude = at::abs(value);
  const at::Tensor amax = over ? at::amax(magnitude, *over, /*keepdim=*/true) : at::max(magnitude);
  const at::Tensor scale = at::exp2(at::floor(at::log2(float8_scale(amax, dtype))));
  return {float8_cast(value, scale, dtype), scale};
}

/// Appends zeros to the dimension `dim`, up to a multiple of kInnerMultiple.
at::Tensor padded(const at::Tensor& matrix, std::int64_t dim) {
  const std::int64_t missing = (kInnerMultiple - matrix.size(dim) % kInnerMultiple) % kInnerMultiple;
  if (missing == 0) return matrix;
  std::vector<std::int64_t> shape = matrix.sizes().vec();
  shape[dim] += missing;
  at::Tensor whole = at::zeros(shape, matrix.options());
  whole.narrow(dim, 0, matrix.size(dim)).copy_(matrix);
  return whole;
}

/// The product on a GPU, whose kernels want a row-major and a column-major matrix, and each scale at the
/// beginning of an allocation: an H200 refused scales four bytes behind one.
at::Tensor product_of_gpu(const Float8Matrix& a, const Float8Matrix& b, at::ScalarType dtype, bool fast) {
  const at::Tensor left = padded(a.data, 1).contiguous();
  const at::Tensor right = padded(b.data, 0).t().contiguous().t();
  const bool is_rowwise = a.scale.dim() == 2;
  at::Tensor a_scale = a.scale.reciprocal();
  at::Tensor b_scale = b.scale.reciprocal();
  if (is_rowwise && b_scale.dim() == 0) b_scale = b_scale.repeat({right.size(1)}).reshape({1, -1});
  const at::Tensor both = is_rowwise && !fast ? a_scale * b_scale : at::Tensor();
  // The kernel of scaled rows is slow without fast accumulation, and gives bfloat16 alone.
  if (both.defined()) a_scale = b_scale = at::ones({}, a_scale.options());
  const at::ScalarType given = is_rowwise && dtype != at::kBFloat16 ? at::kBFloat16 : dtype;
  at::Tensor product = at::_scaled_mm(left, right, a_scale, b_scale, std::nullopt, std::nullopt, given, fast);
  if (both.defined()) product.mul_(both);
  return product.to(dtype);
}

/// The product of two matrices in `dtype`. `fast` lets a GPU add up in less than float32.
at::Tensor product(const Float8Matrix& a, const Float8Matrix& b, at::ScalarType dtype, bool fast = false) {
  if (!a.data.is_cpu()) return product_of_gpu(a, b, dtype, fast);
  // The CPU's _scaled_mm has no scales of rows.
  if (a.scale.dim() == 2)
    return at::mm(a.data.to(at::kFloat) / a.scale, b.data.to(at::kFloat) / b.scale).to(dtype);
  return at::_scaled_mm(a.data.contiguous(), b.data.t().contiguous().t(), a.scale.reciprocal(),
                        b.scale.reciprocal(), std::nullopt, std::nullopt, dtype, fast);
}

at::Tensor as_matrix(const at::Tensor& tensor) { return tensor.reshape({-1, tensor.size(-1)}); }

/// The matrix behind a gradient in a product of backward, or `gathered` if that is there.
Float8Matrix right_factor(const at::Tensor& matrix, const Float8Matrix& gathered, bool rowwise,
                          bool one_scale) {
  if (gathered.scale.defined()) return float8_columns(gathered);
  if (!rowwise) return float8_factors(matrix, at::kFloat8_e4m3fn, false, true).columns;
  return to_float8(matrix, at::kFloat8_e4m3fn, one_scale ? std::nullopt : ScaledOver(0));
}

constexpr const char* kRowwise = "rowwise";
constexpr const char* kInputShape = "input_shape";
constexpr const char* kPlainWeightGradient = "plain_weight_gradient";

/// The product of a float8 linear without its bias. Inputs of both products of a recipe with one scale are
/// cast alike, so that a matrix and its transpose have the same bytes.
///
/// `gathered` is the weight as it was gathered in float8, or has undefined tensors. It takes the place of the
/// weight, which gets the gradient and whose values are not read.
class Float8Product final : public torch::autograd::Function<Float8Product> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& weight,
                            const Float8Matrix& gathered, bool rowwise, bool plain_weight_gradient,
                            at::ScalarType dtype) {
    // The gradient of each factor needs the other one. A frozen weight keeps no input alive. Gathered bytes
    // are those of the flat buffer, which is gathered again before backward.
    const bool is_gathered = gathered.data.defined();
    const at::Tensor& factor = is_gathered ? gathered.data : weight;
    context->save_for_backward({weight.requires_grad() ? input : at::Tensor(),
                                input.requires_grad() ? factor : at::Tensor(),
                                input.requires_grad() ? gathered.scale : at::Tensor()});
    context->saved_data[kInputShape] = input.sizes().vec();
    context->saved_data[kRowwise] = rowwise;
    context->saved_data[kPlainWeightGradient] = plain_weight_gradient;
    std::vector<std::int64_t> shape = input.sizes().vec();
    shape.back() = weight.size(0);
    if (input.numel() == 0)
      return at::zeros(shape, input.options().dtype(dtype));  // There is no largest value.
    const auto left = [&](const at::Tensor& matrix) {
      return rowwise ? to_float8(matrix, at::kFloat8_e4m3fn, 1)
                     : float8_factors(matrix, at::kFloat8_e4m3fn, true, false).rows;
    };
    const Float8Matrix x = left(as_matrix(input));
    const Float8Matrix w = is_gathered ? gathered : left(weight);
    return product(x, w.t(), dtype, /*fast=*/true).reshape(shape);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& input = saved[0];
    const at::Tensor& weight = saved[1];
    const Float8Matrix gathered = {weight, saved[2]};
    const bool rowwise = context->saved_data.at(kRowwise).toBool();
    const bool is_plain = context->saved_data.at(kPlainWeightGradient).toBool();
    const at::ScalarType gradient_type = rowwise ? at::kFloat8_e4m3fn : at::kFloat8_e5m2;
    const std::vector<std::int64_t> input_shape = context->saved_data.at(kInputShape).toIntVector();
    if (c10::multiply_integers(input_shape) == 0) {
      const at::TensorOptions like = gradients[0].options();
      return {at::zeros(input_shape, like),
              at::zeros({gradients[0].size(-1), input_shape.back()}, like),
              at::Tensor(),
              at::Tensor(),
              at::Tensor(),
              at::Tensor()};
    }
    const at::Tensor gradient = as_matrix(gradients[0]);
    const at::ScalarType dtype = gradient.scalar_type();
    const bool wants_input = context->needs_input_grad(0);
    const bool wants_weight = context->needs_input_grad(1);
    Float8Factors g;
    if (!rowwise) g = float8_factors(gradient, gradient_type, wants_input, wants_weight);
    at::Tensor of_input;
    at::Tensor of_weight;
    if (wants_input) {
      if (rowwise) g.rows = to_float8(gradient, gradient_type, 1);
      of_input =
          product(g.rows, right_factor(weight, gathered, rowwise, is_plain), dtype).reshape(input_shape);
    }
    if (wants_weight) {
      const at::Tensor x = as_matrix(input);
      if (rowwise && !is_plain) g.columns = to_float8(gradient, gradient_type, 0);
      of_weight = is_plain ? at::mm(gradient.t(), x.to(dtype))
                           : product(g.columns.t(), right_factor(x, {}, rowwise, false), dtype);
    }
    return {of_input, of_weight, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor float8_linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                         const Float8Rules& rules, const Float8Matrix& gathered) {
  const at::DeviceType device = input.device().type();
  const bool casts = at::autocast::is_autocast_enabled(device);
  const at::ScalarType dtype = casts ? at::autocast::get_autocast_dtype(device) : input.scalar_type();
  // The _scaled_mm of a CPU without AMX calls mm, whose float32 operands autocast would make 16-bit ones.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  // torchao casts the input under the autocast of a GPU. Under that of a CPU only the product has its dtype.
  const at::Tensor cast = casts && !input.is_cpu() ? input.to(dtype) : input;
  const at::Tensor output =
      Float8Product::apply(cast, weight, gathered, rules.rowwise, rules.plain_weight_gradient, dtype);
  return bias.defined() ? output + bias.to(output.scalar_type()) : output;
}

}  // namespace accel::train
