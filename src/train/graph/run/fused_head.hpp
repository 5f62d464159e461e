#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace accel::train {

/// Takes the place of a model's last linear: gets hidden states [..., width], the weight [classes, width] and
/// the bias [classes], which is undefined if there is none. Returns the loss, a scalar, or an undefined
/// tensor if the model shall return logits.
using HeadFunction =
    std::function<at::Tensor(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias)>;

/// The operator `accel::fused_head(Tensor hidden, Tensor weight, Tensor? bias) -> Tensor`. It calls the
/// HeadFunction of the HeadScope around it, and is aten::linear if that returns nothing.
inline constexpr const char* kFusedHead = "accel::fused_head";

/// Sets what kFusedHead calls on this thread. Scopes may be nested.
class HeadScope {
 public:
  /// `head` must outlive the scope.
  explicit HeadScope(const HeadFunction& head);
  HeadScope(const HeadScope&) = delete;
  HeadScope& operator=(const HeadScope&) = delete;
  ~HeadScope();

 private:
  const HeadFunction* before_;
};

}  // namespace accel::train
