#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace accel {

/// A module of the model, by its path from the root; the root's own name is empty.
struct ModuleInfo {
  std::string name;  ///< "layers.3.attn".
  std::string
      class_name;  ///< The last atom of the TorchScript type name, so that mangled classes count as well.
  bool ignored = false;  ///< In the configuration's ignored_modules (see fsdp/ignored_modules.hpp).
};

/// Whether the module or parameter `name` is `module`, or inside of it; all are inside of the root.
inline bool is_at_or_inside(std::string_view name, std::string_view module) {
  return module.empty() ||
         (name.starts_with(module) && (name.size() == module.size() || name[module.size()] == '.'));
}

/// Whether `name` is inside of `module`, and not that itself.
inline bool is_inside(std::string_view name, std::string_view module) {
  return name != module && is_at_or_inside(name, module);
}

/// The module's path, for messages.
inline std::string text_of_module(const std::string& name) { return name.empty() ? "(root)" : name; }

/// A parameter, once for all the names under which it occurs.
struct ParameterInfo {
  std::vector<std::string> fqns;  ///< In module order; more than one if the parameter is tied.
  std::vector<std::int64_t> shape;
  std::string dtype;  ///< "float32".
  bool requires_grad = true;
  bool cross_unit =
      false;  ///< Read by a module past the boundary of a wrapped unit (see graph/cross_unit_reads.hpp).
  bool replicated =
      false;  ///< Not sharded, as it is in one of the ignored modules: every rank has all of it.
};

/// What planning needs to know of a model; holds no tensor.
struct ModelStructure {
  std::vector<ModuleInfo> modules;  ///< Pre-order, siblings in registration order; the root comes first.
  std::vector<ParameterInfo> parameters;
};

}  // namespace accel
