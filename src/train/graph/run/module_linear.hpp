#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <unordered_map>

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

/// Gives module objects their LinearFunction for as long as this lives. The objects must outlive it.
///
/// As with UnitRegistration, the operator is a plain function and finds the module by its address alone, so
/// that the table behind this class is global.
class LinearRegistration {
 public:
  explicit LinearRegistration(std::unordered_map<const c10::ivalue::Object*, LinearFunction> functions);
  LinearRegistration(const LinearRegistration&) = delete;
  LinearRegistration& operator=(const LinearRegistration&) = delete;
  ~LinearRegistration();
};

}  // namespace accel::train
