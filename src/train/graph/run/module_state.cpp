#include "train/graph/run/module_state.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/csrc/jit/api/module.h>

#include <algorithm>
#include <unordered_map>

#include "base/error.hpp"
#include "train/graph/tensors.hpp"

namespace accel::train {
namespace {

/// Copies lists, tuples and dicts, but not the tensors and objects in them.
c10::IValue copy_of_containers(const c10::IValue& value) { return map_elements(value, copy_of_containers); }

}  // namespace

ModuleState::ModuleState(const c10::IValue& self) {
  for (const auto& module : torch::jit::Module(self.toObject()).named_modules()) {
    const c10::intrusive_ptr<c10::ivalue::Object> object = module.value._ivalue();
    const c10::ClassTypePtr type = module.value.type();
    for (std::size_t i = 0; i < type->numAttributes(); ++i) {
      const auto class_type = type->getAttribute(i)->cast<c10::ClassType>();
      if (type->is_parameter(i) || (class_type != nullptr && class_type->is_module())) continue;
      slots_.push_back({object, i, (module.name.empty() ? "" : module.name + ".") + type->getAttributeName(i),
                        type->is_buffer(i)});
    }
  }
}

ModuleState::TensorVersions ModuleState::tensor_versions() const {
  TensorVersions versions;
  for (const Slot& slot : slots_) {
    for_each_tensor(slot.value(), [&](const at::Tensor& tensor) {
      versions.emplace_back(tensor, static_cast<std::uint32_t>(tensor._version()));
    });
  }
  return versions;
}

std::vector<c10::IValue> ModuleState::values() const {
  std::vector<c10::IValue> values;
  values.reserve(slots_.size());
  for (const Slot& slot : slots_) values.push_back(slot.value());
  return values;
}

std::vector<c10::IValue> ModuleState::copies() const {
  const at::NoGradGuard no_grad;
  std::unordered_map<const at::TensorImpl*, at::Tensor> tensors;
  std::vector<c10::IValue> copies = values();
  for (c10::IValue& value : copies) {
    value = copy_of_containers(value);
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    at::Tensor& copy = tensors[value.toTensor().unsafeGetTensorImpl()];
    if (!copy.defined()) copy = value.toTensor().clone();
    value = copy;
  }
  return copies;
}

bool contains(const ModuleState::TensorVersions& versions, const at::Tensor& tensor) {
  return std::any_of(versions.begin(), versions.end(), [&](const auto& entry) {
    return entry.first.is_same(tensor) && entry.second == tensor._version();
  });
}

StateSnapshot::StateSnapshot(const ModuleState& state)
    : state_(state),
      values_(state.values()),
      tensor_versions_(state.tensor_versions()),
      copies_(state.copies()),
      versions_(values_.size()) {}

void StateSnapshot::finish() {
  for (std::size_t i = 0; i < values_.size(); ++i) {
    if (!values_[i].isTensor() || !values_[i].toTensor().defined()) continue;
    const at::Tensor& tensor = values_[i].toTensor();
    if (!contains(tensor_versions_, tensor)) continue;
    copies_[i] = tensor;
    versions_[i] = static_cast<std::uint32_t>(tensor._version());
  }
}

// A copy, because batch norms change their statistics without a new version.
c10::IValue StateSnapshot::value(std::size_t slot, const std::string& unit) const {
  if (!versions_[slot]) return copies_[slot];
  const at::Tensor& tensor = copies_[slot].toTensor();
  if (tensor._version() != *versions_[slot]) {
    throw Error(
        ErrorKind::kUsage,
        fmt::format(
            "activation checkpointing: '{}' in '{}' is changed in place after the module has run, so the "
            "module cannot be recomputed",
            state_.slots()[slot].name, unit))
        .hint("assign a new tensor instead, or set fsdp_activation_checkpointing: false");
  }
  const at::NoGradGuard no_grad;
  return tensor.clone();
}

SnapshotScope::SnapshotScope(const ModuleState& state, const StateSnapshot& snapshot, const std::string& unit)
    : state_(state), values_(state.values()) {
  std::unordered_map<const at::TensorImpl*, c10::IValue> copies;  // Tied tensors stay tied.
  try {
    for (std::size_t i = 0; i < values_.size(); ++i) {
      const c10::IValue& then = snapshot.values()[i];
      if (then.isTensor() && then.toTensor().defined()) {
        c10::IValue& copy = copies[then.toTensor().unsafeGetTensorImpl()];
        if (copy.isNone()) copy = snapshot.value(i, unit);
        state.slots()[i].set(copy);
      } else {
        state.slots()[i].set(snapshot.value(i, unit));
      }
    }
  } catch (...) {
    restore();
    throw;
  }
}

void SnapshotScope::restore() noexcept {
  for (std::size_t i = 0; i < values_.size(); ++i) state_.slots()[i].set(values_[i]);
}

SnapshotScope::~SnapshotScope() { restore(); }

}  // namespace accel::train
