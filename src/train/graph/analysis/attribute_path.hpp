#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <optional>
#include <string>

namespace accel::train {

/// Returns the path of an attribute of the module that the value's graph is a method of, "" for the module
/// itself, and nullopt for any other value.
std::optional<std::string> attribute_path(const torch::jit::Value* value);

}  // namespace accel::train
