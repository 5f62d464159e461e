#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace accel::ckpt {

/// What the code of a TorchScript archive says about a class, as far as state_dict() depends on it.
struct ScriptClass {
  bool is_module = false;
  std::vector<std::string> parameters;
  /// Absent in archives from before torch 1.5; then every tensor that is no parameter is a buffer. Persistent
  /// and other buffers look alike.
  std::optional<std::vector<std::string>> buffers;
};

/// The classes of one source file of an archive (`code/__torch__/...py`), by name. Only the lines `class
/// Name(Module):`, `__parameters__ = [...]` and `__buffers__ = [...]` are looked at; nothing is run.
[[nodiscard]] std::map<std::string, ScriptClass> parse_script_classes(std::string_view source);

}  // namespace accel::ckpt
