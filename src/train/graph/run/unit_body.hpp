#pragma once

#include <ATen/core/ivalue.h>

#include <functional>
#include <vector>

namespace accel::train {

/// What runs when a method of a unit is called: takes the inputs, the first of which is the module object,
/// and returns the result. It may run several times for one call, as activation checkpointing does.
using UnitBody = std::function<c10::IValue(const std::vector<c10::IValue>& inputs)>;

}  // namespace accel::train
