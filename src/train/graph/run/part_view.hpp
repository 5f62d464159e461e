#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace accel::train {

/// Checks a view of what a module returned: gets the tensor and the sizes that `view` or `reshape` gets.
using ViewCheck = std::function<void(const at::Tensor& tensor, at::IntArrayRef sizes)>;
/// Checks an operator that cuts what a module returned: gets the tensor and the dimension, from the end if
/// it is negative.
using CutCheck = std::function<void(const at::Tensor& tensor, std::int64_t dim)>;

/// The operator `accel::check_view(Tensor self, int[] size) -> ()`, which passes/check_views.hpp puts in
/// front of views. It calls the ViewCheck of the process, and does nothing if there is none.
inline constexpr const char* kCheckView = "accel::check_view";
/// The operator `accel::check_cut(Tensor self, int dim) -> ()`, the same for the CutCheck.
inline constexpr const char* kCheckCut = "accel::check_cut";

/// Sets the ViewCheck and the CutCheck of the process for as long as this lives. An operator has no other way
/// to find it.
class ViewCheckRegistration {
 public:
  ViewCheckRegistration(ViewCheck view, CutCheck cut);
  ViewCheckRegistration(const ViewCheckRegistration&) = delete;
  ViewCheckRegistration& operator=(const ViewCheckRegistration&) = delete;
  ~ViewCheckRegistration();
};

}  // namespace accel::train
