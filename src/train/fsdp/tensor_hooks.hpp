#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <utility>
#include <vector>

namespace accel::train {

/// Hooks on tensors of one micro-batch, called when backward has computed the gradient of the tensor.
///
/// The hook of an intermediate tensor goes with the graph. A leaf, such as a parameter of the root that is an
/// argument of a unit, outlives the micro-batch: remove_from_leaves() removes its hooks.
class TensorHooks {
 public:
  void add(const at::Tensor& tensor, std::function<void(const at::TensorBase&)> hook);
  void remove_from_leaves();

 private:
  using WeakTensor = c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>;
  std::vector<std::pair<WeakTensor, unsigned>> leaves_;  ///< Each leaf, with the index of the hook on it.
};

}  // namespace accel::train
