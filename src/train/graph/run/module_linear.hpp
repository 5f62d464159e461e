#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "train/graph/run/module_functions.hpp"

namespace accel::train {

/// Computes a linear that is not plain: gets the input [..., in], the weight [out, in] and the bias [out],
/// which is undefined if there is none, and returns the output [..., out].
using LinearFunction =
    std::function<at::Tensor(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias)>;

/// The operator `accel::linear(Any self, Tensor input, Tensor weight, Tensor? bias) -> Tensor`, which stands
/// for the product of the module `self` (passes/replace_linears.hpp). It calls the module's LinearFunction,
/// and is aten::linear for a module without one: instances of one class share their code, and only some of
/// them may have a function.
inline constexpr const char* kModuleLinear = "accel::linear";

using LinearRegistration = ModuleFunctions<LinearFunction>;

}  // namespace accel::train
