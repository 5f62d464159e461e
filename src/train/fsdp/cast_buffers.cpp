#include "train/fsdp/cast_buffers.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <unordered_set>

#include "plan/layout/buffer_plan.hpp"

namespace accel::train {

CastBuffers cast_buffers(const torch::jit::Module& root, const ModelStructure& structure,
                         at::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  std::unordered_set<std::string> uncast;
  for (const ModuleInfo& module : structure.modules) {
    if (module.ignored || is_batch_norm(module)) uncast.insert(module.name);
  }
  CastBuffers result;
  std::unordered_map<const at::TensorImpl*, at::Tensor> copies;
  for (const auto& module : root.named_modules()) {
    if (uncast.contains(module.name)) continue;
    const auto object = module.value._ivalue();
    const c10::ClassTypePtr type = module.value.type();
    for (std::size_t slot = 0; slot < type->numAttributes(); ++slot) {
      const c10::IValue value = object->getSlot(slot);
      if (!type->is_buffer(slot) || !value.isTensor() || !value.toTensor().defined()) continue;
      const at::Tensor& buffer = value.toTensor();
      if (!buffer.is_floating_point() || buffer.scalar_type() == dtype) continue;
      at::Tensor& copy = copies[buffer.unsafeGetTensorImpl()];
      if (!copy.defined()) copy = buffer.to(dtype);
      object->setSlot(slot, copy);
      const std::string& name = type->getAttributeName(slot);
      result[module.name.empty() ? name : module.name + "." + name] = buffer.scalar_type();
    }
  }
  return result;
}

}  // namespace accel::train
