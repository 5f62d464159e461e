#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string_view>
#include <vector>

#include "timeline.hpp"

namespace accel::sim {

/// The multiplications and additions of a call with these tensors, in their order among the arguments; 0 for
/// operators whose time is that of their memory.
double flops_of(std::string_view operator_name, const std::vector<at::Tensor>& tensors);

/// The time of a kernel that computes `flops` and moves `bytes`.
Seconds seconds_of(const Speeds& speeds, double flops, at::ScalarType dtype, std::size_t bytes);

}  // namespace accel::sim
