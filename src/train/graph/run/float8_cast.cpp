#include "train/graph/run/float8_cast.hpp"

#include <ATen/ATen.h>

namespace accel::train {
namespace {

/// The range of a float8 dtype, and the least largest value with which a scale is computed, as in torchao.
constexpr double kMaxE4M3 = 448;
constexpr double kMaxE5M2 = 57344;
constexpr double kLeastAmax = 1e-12;

double max_of(at::ScalarType dtype) { return dtype == at::kFloat8_e5m2 ? kMaxE5M2 : kMaxE4M3; }

}  // namespace

at::Tensor float8_scale(const at::Tensor& amax, at::ScalarType dtype) {
  return (max_of(dtype) / amax.to(at::kDouble).clamp_min(kLeastAmax)).to(at::kFloat);
}

at::Tensor float8_cast(const at::Tensor& value, const at::Tensor& scale, at::ScalarType dtype) {
  // A cast does not saturate before torch 2.12.
  return (value.to(at::kFloat) * scale).clamp_(-max_of(dtype), max_of(dtype)).to(dtype);
}

}  // namespace accel::train
