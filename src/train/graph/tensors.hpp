#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

namespace accel::train {

/// Calls `visit` on every defined tensor in `value`, in tuples, lists, dicts and Optionals of any depth.
/// Objects are not entered.
template <class Visit>
void for_each_tensor(const c10::IValue& value, Visit&& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isTuple()) {
    for (const auto& element : value.toTupleRef().elements()) for_each_tensor(element, visit);
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) for_each_tensor(element, visit);
  } else if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) for_each_tensor(entry.value(), visit);
  }
}

/// Whether for_each_tensor would visit any tensor.
inline bool holds_tensor(const c10::IValue& value) {
  bool holds = false;
  for_each_tensor(value, [&](const at::Tensor&) { holds = true; });
  return holds;
}

/// Whether `value` is or contains an object, whose tensors for_each_tensor does not visit.
inline bool holds_object(const c10::IValue& value) {
  if (value.isObject()) return true;
  if (value.isTuple()) {
    const auto& elements = value.toTupleRef().elements();
    return std::any_of(elements.begin(), elements.end(), holds_object);
  }
  if (value.isList()) {
    const auto elements = value.toListRef();
    return std::any_of(elements.begin(), elements.end(), holds_object);
  }
  if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) {
      if (holds_object(entry.value())) return true;
    }
  }
  return false;
}

/// The tensors that for_each_tensor visits, in its order.
inline std::vector<at::Tensor> tensors_of(const c10::IValue& value) {
  std::vector<at::Tensor> tensors;
  for_each_tensor(value, [&](const at::Tensor& tensor) { tensors.push_back(tensor); });
  return tensors;
}

/// Whether both hold the same tensor objects; equal values are not enough.
inline bool are_same(std::span<const at::Tensor> first, std::span<const at::Tensor> second) {
  return std::equal(first.begin(), first.end(), second.begin(), second.end(),
                    [](const at::Tensor& a, const at::Tensor& b) { return a.is_same(b); });
}

/// A copy of the tuple, list or dict `value` with `map(element)` in place of every element. Any other value
/// is returned unchanged.
template <class Map>
c10::IValue map_elements(const c10::IValue& value, Map&& map) {
  if (value.isTuple()) {
    const auto& tuple = value.toTupleRef();
    std::vector<c10::IValue> elements;
    for (const auto& element : tuple.elements()) elements.push_back(map(element));
    const auto type = tuple.type<c10::TupleType>();
    return type->schema() ? c10::ivalue::Tuple::createNamed(std::move(elements), type)
                          : c10::ivalue::Tuple::create(std::move(elements));
  }
  if (value.isList()) {
    const c10::List<c10::IValue> list = value.toList();
    c10::impl::GenericList copy(list.elementType());
    copy.reserve(list.size());
    for (const c10::IValue& element : value.toListRef()) copy.push_back(map(element));
    return copy;
  }
  if (value.isGenericDict()) {
    const auto dict = value.toGenericDict();
    c10::impl::GenericDict copy(dict.keyType(), dict.valueType());
    for (const auto& entry : dict) copy.insert(entry.key(), map(entry.value()));
    return copy;
  }
  return value;
}

/// A copy of `value` with `map(tensor)` in place of every tensor that for_each_tensor would visit, in the
/// same order. A value without tensors is returned itself, not copied.
template <class Map>
c10::IValue map_tensors(const c10::IValue& value, Map&& map) {
  if (!holds_tensor(value)) return value;
  if (value.isTensor()) return map(value.toTensor());
  return map_elements(value, [&](const c10::IValue& element) { return map_tensors(element, map); });
}

}  // namespace accel::train
