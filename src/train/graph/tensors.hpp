#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <utility>
#include <vector>

namespace accel::train {

/// Calls `visit` on every defined tensor inside `value`: tuples, lists, dicts and Optionals of any depth.
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

}  // namespace accel::train
