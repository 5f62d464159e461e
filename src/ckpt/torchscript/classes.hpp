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

/// What the code of a TorchScript archive says about a class, as far as its state and its parameters' use
/// depend on it.
struct ScriptClass {
  bool is_module = false;
  std::vector<std::string> parameters;
  /// Absent in archives from before torch 1.5; then every tensor that is no parameter is a buffer. Persistent
  /// and other buffers look alike.
  std::optional<std::vector<std::string>> buffers;
  std::map<std::string, std::string>
      types;                          ///< Of its attributes, as written: "Tensor", "__torch__.nn.Linear".
  std::vector<ScriptMethod> methods;  ///< Without hooks, which are no methods.
};

/// The classes of one source file of an archive (`code/__torch__/...py`), by name. Lines are told apart by
/// how they begin, as torch writes them: `class Name(Module):`, `__parameters__ = [...]`, `__buffers__ =
/// [...]`, `name : type`, `__annotations__["0"] = type`, `def`; nothing is run.
[[nodiscard]] std::map<std::string, ScriptClass> parse_script_classes(std::string_view source);

}  // namespace accel::ckpt
