#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace accel::ckpt {

/// A method of a class, as source text from its `def` to its end.
struct ScriptMethod {
  std::string name;
  std::string source;
};

/// A class in the code of a TorchScript archive: its attributes and its methods.
struct ScriptClass {
  bool is_module = false;
  std::vector<std::string> parameters;
  /// Absent in archives from before torch 1.5; then every tensor that is not a parameter is a buffer.
  /// Persistent and other buffers cannot be told apart.
  std::optional<std::vector<std::string>> buffers;
  /// The types of the attributes, as they are written: "Tensor", "__torch__.nn.Linear".
  std::map<std::string, std::string> types;
  std::vector<ScriptMethod> methods;  ///< Hooks are not methods.
};

/// The classes of one source file of an archive (`code/__torch__/...py`), by name. Nothing is run:
/// lines are recognized by how they begin, as torch writes them: `class Name(Module):`, `__parameters__ =
/// [...]`, `__buffers__ =
/// [...]`, `name : type`, `__annotations__["0"] = type`, `def`.
[[nodiscard]] std::map<std::string, ScriptClass> parse_script_classes(std::string_view source);

}  // namespace accel::ckpt
