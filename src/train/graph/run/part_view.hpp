#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace accel::train {

/// Checks a view of what a module returned: gets the tensor and the sizes that `view` or `reshape` gets.
using ViewCheck = std::function<void(const at::Tensor& tensor, at::IntArrayRef sizes)>;

/// The operator `accel::check_view(Tensor self, int[] size) -> ()`, which passes/check_views.hpp puts in
/// front of views. It calls the ViewCheck of the process, and does nothing if there is none.
inline constexpr const char* kCheckView = "accel::check_view";

/// Sets the ViewCheck of the process for as long as this lives. An operator has no other way to find it.
class ViewCheckRegistration {
 public:
  explicit ViewCheckRegistration(ViewCheck check);
  ViewCheckRegistration(const ViewCheckRegistration&) = delete;
  ViewCheckRegistration& operator=(const ViewCheckRegistration&) = delete;
  ~ViewCheckRegistration();
};

}  // namespace accel::train
