#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/jit_type.h>

#include <optional>
#include <vector>

namespace accel::train {

/// Makes blocks `with torch.autocast(...)` set autocast for the operators within them, as in Python, on the
/// device type that they name, or on that of `device`. TorchScript leaves it to a pass over graphs, which
/// the simple executor does not run, and which has a list of operators of its own.
///
/// Patches the methods `__enter__` and `__exit__` of the classes, each once. Throws an Error of kind kUsage
/// if a class has other attributes than torch's. Call before the first run.
void obey_autocast(const std::vector<c10::ClassTypePtr>& classes, std::optional<at::Device> device);

}  // namespace accel::train
