#include "train/fsdp/tensor_hooks.hpp"

namespace accel::train {

void TensorHooks::add(const at::Tensor& tensor, std::function<void(const at::TensorBase&)> hook) {
  const unsigned index = tensor.register_hook(std::move(hook));
  if (tensor.is_leaf()) leaves_.emplace_back(tensor.getIntrusivePtr(), index);
}

void TensorHooks::remove_from_leaves() {
  for (const auto& [weak, index] : leaves_) {
    if (auto tensor = weak.lock()) at::Tensor(std::move(tensor)).remove_hook(index);
  }
  leaves_.clear();
}

}  // namespace accel::train
