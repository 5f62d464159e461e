#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "structure/tensor_part.hpp"

namespace accel {

/// A module of the model, by its path from the root; the root's own name is empty.
struct ModuleInfo {
  std::string name;  ///< The path, such as "layers.3.attn".
  /// The last atom of the TorchScript type name, without the mangling in front of it.
  std::string class_name;
  bool ignored =
      false;  ///< It is among the configuration's ignored_modules (plan/units/ignored_modules.hpp).
};

/// Whether the module or parameter `name` is `module` or is inside it. Everything is inside the root.
inline bool is_at_or_inside(std::string_view name, std::string_view module) {
  return module.empty() ||
         (name.starts_with(module) && (name.size() == module.size() || name[module.size()] == '.'));
}

/// Whether `name` is inside `module`, and not `module` itself.
inline bool is_inside(std::string_view name, std::string_view module) {
  return name != module && is_at_or_inside(name, module);
}

/// The module's path, for messages.
inline std::string text_of_module(const std::string& name) { return name.empty() ? "(root)" : name; }

/// A parameter, with all the names under which it occurs.
struct ParameterInfo {
  std::vector<std::string> fqns;  ///< The names in module order; several if the parameter is tied.
  std::vector<std::int64_t> shape;
  std::string dtype;  ///< The dtype, such as "float32".
  bool requires_grad = true;
  bool cross_unit = false;  ///< Another unit reads it (train/graph/analysis/cross_unit_reads.hpp).
  /// Every rank has all of the parameter, because it is in one of the ignored modules.
  bool replicated = false;
  /// This rank's part, if tensor parallelism cuts the parameter (plan/linears/tensor_plan.hpp). `shape` is
  /// that of the whole parameter.
  std::optional<TensorPart> part = {};
  /// The ranks of tensor parallelism each compute a part of the parameter's gradient, which is their sum.
  bool sums_gradient = false;
  /// It is gathered in float8 where it is sharded (plan/linears/float8_gather.hpp).
  bool gathers_float8 = false;
};

/// The shape of what this rank has of the parameter, before it is sharded.
inline std::vector<std::int64_t> local_shape(const ParameterInfo& parameter) {
  return parameter.part ? shape_of_part(parameter.shape, *parameter.part) : parameter.shape;
}

/// What planning needs to know about a model, without its tensors.
struct ModelStructure {
  std::vector<ModuleInfo> modules;  ///< The modules in pre-order, siblings as registered, the root first.
  std::vector<ParameterInfo> parameters;
};

}  // namespace accel
