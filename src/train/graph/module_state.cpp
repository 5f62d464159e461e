#include "train/graph/module_state.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/jit/api/module.h>

#include <algorithm>
#include <unordered_map>

#include "train/graph/tensors.hpp"

namespace accel::train {
namespace {

bool is_container(const c10::IValue& value) {
  return value.isTuple() || value.isList() || value.isGenericDict();
}

/// Of lists, tuples and dicts the elements count, and of their tensors which they are.
bool is_same(const c10::IValue& a, const c10::IValue& b) {
  if (a.isTensor() || b.isTensor()) return a.isTensor() && b.isTensor() && a.toTensor().is_same(b.toTensor());
  if (a.isList() && b.isList()) {
    const auto first = a.toListRef();
    const auto second = b.toListRef();
    return std::equal(first.begin(), first.end(), second.begin(), second.end(), is_same);
  }
  if (a.isTuple() && b.isTuple()) {
    const auto& first = a.toTupleRef().elements();
    const auto& second = b.toTupleRef().elements();
    return std::equal(first.begin(), first.end(), second.begin(), second.end(), is_same);
  }
  if (a.isGenericDict() && b.isGenericDict()) {
    const auto first = a.toGenericDict();
    const auto second = b.toGenericDict();
    if (first.size() != second.size()) return false;
    return std::all_of(first.begin(), first.end(), [&](const auto& entry) {
      const auto other = second.find(entry.key());
      return other != second.end() && is_same(entry.value(), other->value());
    });
  }
  if (a.isObject() || b.isObject()) return a.is(b);
  return a == b;
}

c10::IValue copy_of_container(const c10::IValue& value) {
  if (holds_object(value)) return value;
  if (!holds_tensor(value)) return value.deepcopy();
  return map_tensors(value, [](const at::Tensor& tensor) { return tensor; });
}

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

ModuleState::Marks ModuleState::marks() const {
  Marks marks;
  for (const Slot& slot : slots_) {
    for_each_tensor(slot.value(), [&](const at::Tensor& tensor) {
      marks.emplace_back(tensor, static_cast<std::uint32_t>(tensor._version()));
    });
  }
  return marks;
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
    if (is_container(value)) value = copy_of_container(value);
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    at::Tensor& copy = tensors[value.toTensor().unsafeGetTensorImpl()];
    if (!copy.defined()) copy = value.toTensor().clone();
    value = copy;
  }
  return copies;
}

bool is_marked(const at::Tensor& tensor, const ModuleState::Marks& marks) {
  return std::any_of(marks.begin(), marks.end(), [&](const auto& mark) {
    return mark.first.is_same(tensor) && mark.second == tensor._version();
  });
}

std::vector<std::optional<c10::IValue>> only_changed(const ModuleState& state,
                                                     const std::vector<c10::IValue>& values,
                                                     const ModuleState::Marks& marks,
                                                     std::vector<c10::IValue> copies) {
  std::vector<std::optional<c10::IValue>> changed(copies.size());
  for (std::size_t i = 0; i < copies.size(); ++i) {
    const c10::IValue& now = state.slots()[i].value();
    bool is_other = false;
    if (now.isTensor()) {
      is_other = !is_same(now, values[i]) || (now.toTensor().defined() && !is_marked(now.toTensor(), marks));
    } else if (is_container(now) && is_container(copies[i])) {
      is_other = !is_same(now, copies[i]);  // What was there may have changed with it.
    } else {
      is_other = !is_same(now, values[i]);
    }
    if (is_other) changed[i] = std::move(copies[i]);
  }
  return changed;
}

StateAside::StateAside(const ModuleState& state, const std::vector<std::optional<c10::IValue>>& before)
    : state_(state), values_(state.values()) {
  const std::vector<c10::IValue> copies = state.copies();
  for (std::size_t i = 0; i < copies.size(); ++i)
    state.slots()[i].set(i < before.size() && before[i] ? *before[i] : copies[i]);
}

StateAside::~StateAside() {
  for (std::size_t i = 0; i < values_.size(); ++i) state_.slots()[i].set(values_[i]);
}

}  // namespace accel::train
